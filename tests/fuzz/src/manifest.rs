//! Manifests: parsed, rewritten, written and converted as by the commands.

use serde_json::Value;
use sidecar_policy::convert::convert;
use sidecar_policy::manifest::{File, Layout, Lines, emit, join};
use sidecar_policy::policy::{Policy, Site};

const NAME: &str = "fuzz.yaml";

pub(crate) fn run(bytes: &[u8]) {
    match File::parse(NAME, bytes.to_vec()) {
        Ok(file) => {
            assert_eq!(file.rewrite(|_| None).as_bytes(), bytes, "nothing is changed, and the bytes are others");
            is_the_same_when_written_anew(&file);
            becomes_valid_policies(file);
        }
        Err(faults) => {
            // In YAML, a lone CR also ends a line.
            let last = bytes.iter().filter(|byte| b"\n\r".contains(byte)).count() + 1;
            assert!(!faults.is_empty());
            for fault in faults {
                assert!(fault.place.line <= last && !fault.message.is_empty(), "{fault}, of {last} lines");
            }
        }
    }
}

fn values(text: &str) -> Vec<Value> {
    let file = File::parse(NAME, text.as_bytes().to_vec());
    let file = file.unwrap_or_else(|faults| panic!("{text:?} cannot be read again: {}", faults[0]));
    file.manifests().map(|manifest| manifest.value.clone()).collect()
}

fn is_the_same_when_written_anew(file: &File) {
    let was: Vec<Value> = file.manifests().map(|manifest| manifest.value.clone()).collect();
    assert_eq!(values(&file.rewrite(|manifest| Some(manifest.value.clone()))), was);
    assert_eq!(values(&join([file.rewrite(|_| None), file.rewrite(|_| None)])), [&was[..], &was[..]].concat());
    for manifest in file.manifests() {
        for layout in [Layout::YAML, Layout::json(2), Layout::of(manifest)] {
            assert!(values(&emit(&manifest.value, &layout)).iter().eq([&manifest.value]), "{layout:?}");
        }
        let line = Lines::of(manifest).place(&[], "metadata.name").line;
        assert!(line >= manifest.place.line);
    }
}

fn becomes_valid_policies(file: File) {
    let conversion = convert(&[file], &[], "default", &Site::new("scpol-system", [], []));
    let names = conversion.initializer_names().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let site = Site::new("scpol-system", [], names);
    for policy in &conversion.policies {
        let parsed = Policy::parse(&policy.object, &site);
        assert!(parsed.is_ok(), "{} is {:?}", policy.object, parsed.err());
    }
}
