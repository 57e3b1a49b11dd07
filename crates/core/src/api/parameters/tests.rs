use super::*;
use crate::api::v1alpha1::{self, Template};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A template with an item for each leaf.
fn template() -> Value {
    let probe = json!({ "httpGet": { "path": "/", "port": 1 }, "periodSeconds": 10 });
    json!({
        "metadata": { "labels": { "app": "a" }, "annotations": { "a.example/b": "c" } },
        "containers": [
            { "name": "other", "image": "other" },
            {
                "name": "envoy",
                "image": "registry.example.com:5000/mesh/envoy:v1",
                "command": ["/bin/envoy", "-c"],
                "args": ["--level=$(scpol.level)", "$$(scpol.level)", "plain"],
                "env": [
                    { "name": "SERVICE", "value": "a" },
                    { "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                    { "name": "CONFIG", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
                    { "name": "a.b]c", "value": "" },
                ],
                "resources": { "limits": { "memory": "256Mi" } },
                "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "NotRequired" }],
                "ports": [{ "name": "http", "containerPort": 8080 }, { "containerPort": 9090 }],
                "livenessProbe": probe,
                "readinessProbe": { "tcpSocket": { "port": "http" } },
                "startupProbe": { "grpc": { "port": 9090 } },
                "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
            },
        ],
        "initContainers": [{ "name": "setup", "image": "busybox", "args": ["a"] }],
        "env": [{ "name": "PROXY", "value": "http://localhost" }, { "name": "OPTS", "value": "-a", "merge": "Append" }],
        "volumes": [
            { "name": "tmp", "emptyDir": {} },
            { "name": "conf", "configMap": { "name": "conf" } },
            { "name": "tls", "secret": { "secretName": "tls" } },
        ],
    })
}

fn of(template: &Value) -> Template {
    serde_json::from_value(template.clone()).unwrap()
}

fn declared(parameters: &Value) -> Vec<v1alpha1::Parameter> {
    serde_json::from_value(parameters.clone()).unwrap()
}

/// The parameters for a template without marks.
fn parse_in(template: &Value, parameters: &Value) -> (Parameters, Vec<String>) {
    let (parsed, faults) = Parameters::parse("mesh", &declared(parameters), &of(template));
    (parsed, faults.into_iter().map(|(field, fault)| format!("{field} {fault}")).collect())
}

fn without_marks() -> Value {
    let mut template = template();
    template["containers"][1]["args"][0] = json!("plain");
    template
}

fn one(parameter: &Value) -> Parameter {
    let (parsed, faults) = parse_in(&without_marks(), &json!([parameter]));
    assert_eq!(faults, [""; 0], "{parameter}");
    parsed.0[0].clone()
}

/// The value at a pointer of JSON.
fn at<'v>(value: &'v Value, pointer: &str) -> &'v Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

#[test]
fn each_leaf_gets_its_value() {
    let c = "/containers/1";
    let rows = [
        (
            "containers[envoy].image",
            "String",
            "a.io/b@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            format!("{c}/image"),
            json!("a.io/b@sha256:0000000000000000000000000000000000000000000000000000000000000000"),
        ),
        (
            "containers[envoy].image:tag",
            "String",
            "v2",
            format!("{c}/image"),
            json!("registry.example.com:5000/mesh/envoy:v2"),
        ),
        ("containers[other].image:tag", "String", "v2", "/containers/0/image".to_owned(), json!("other:v2")),
        ("containers[envoy].imagePullPolicy", "String", "Always", format!("{c}/imagePullPolicy"), json!("Always")),
        ("containers[envoy].args[2]", "String", "a $(B) $$ $", format!("{c}/args/2"), json!("a $$(B) $$$$ $$")),
        ("containers[envoy].args[2]", "Integer", "-5", format!("{c}/args/2"), json!("-5")),
        ("containers[envoy].args[2]", "Boolean", "false", format!("{c}/args/2"), json!("false")),
        ("containers[envoy].args[2]", "Duration", "1h30m", format!("{c}/args/2"), json!("1h30m")),
        ("containers[envoy].args[2]", "Quantity", "1.50Gi", format!("{c}/args/2"), json!("1.50Gi")),
        ("containers[envoy].command[0]", "String", "sh\nx", format!("{c}/command/0"), json!("sh\nx")),
        ("containers[envoy].env[SERVICE].value", "String", "a'\"`b", format!("{c}/env/0/value"), json!("a'\"`b")),
        ("containers[envoy].env[a.b]c].value", "String", "x", format!("{c}/env/3/value"), json!("x")),
        (
            "containers[envoy].env[CONFIG].valueFrom.configMapKeyRef.name",
            "String",
            "x.y",
            format!("{c}/env/2/valueFrom/configMapKeyRef/name"),
            json!("x.y"),
        ),
        (
            "containers[envoy].env[SECRET].valueFrom.secretKeyRef.name",
            "String",
            "x",
            format!("{c}/env/1/valueFrom/secretKeyRef/name"),
            json!("x"),
        ),
        (
            "containers[envoy].resources.limits.memory",
            "Quantity",
            "512Mi",
            format!("{c}/resources/limits/memory"),
            json!("512Mi"),
        ),
        (
            "containers[envoy].resources.requests.cpu",
            "Quantity",
            "0.10",
            format!("{c}/resources/requests/cpu"),
            json!("0.10"),
        ),
        (
            "containers[other].resources.requests.ephemeral-storage",
            "Quantity",
            "1G",
            "/containers/0/resources/requests/ephemeral-storage".to_owned(),
            json!("1G"),
        ),
        (
            "containers[other].resources.limits[example.com/gpu]",
            "Integer",
            "2",
            "/containers/0/resources/limits/example.com~1gpu".to_owned(),
            json!("2"),
        ),
        (
            "containers[envoy].resizePolicy[cpu].restartPolicy",
            "String",
            "RestartContainer",
            format!("{c}/resizePolicy/0/restartPolicy"),
            json!("RestartContainer"),
        ),
        (
            "containers[envoy].ports[http].containerPort",
            "Integer",
            "81",
            format!("{c}/ports/0/containerPort"),
            json!(81),
        ),
        (
            "containers[envoy].ports[9090].containerPort",
            "Integer",
            "65535",
            format!("{c}/ports/1/containerPort"),
            json!(65535),
        ),
        (
            "containers[envoy].livenessProbe.initialDelaySeconds",
            "Integer",
            "0",
            format!("{c}/livenessProbe/initialDelaySeconds"),
            json!(0),
        ),
        (
            "containers[envoy].livenessProbe.periodSeconds",
            "Duration",
            "1m30s",
            format!("{c}/livenessProbe/periodSeconds"),
            json!(90),
        ),
        (
            "containers[envoy].livenessProbe.successThreshold",
            "Integer",
            "1",
            format!("{c}/livenessProbe/successThreshold"),
            json!(1),
        ),
        (
            "containers[envoy].readinessProbe.successThreshold",
            "Integer",
            "3",
            format!("{c}/readinessProbe/successThreshold"),
            json!(3),
        ),
        (
            "containers[envoy].startupProbe.failureThreshold",
            "Integer",
            "30",
            format!("{c}/startupProbe/failureThreshold"),
            json!(30),
        ),
        (
            "containers[envoy].startupProbe.timeoutSeconds",
            "Duration",
            "2s",
            format!("{c}/startupProbe/timeoutSeconds"),
            json!(2),
        ),
        (
            "containers[envoy].livenessProbe.terminationGracePeriodSeconds",
            "Duration",
            "5s",
            format!("{c}/livenessProbe/terminationGracePeriodSeconds"),
            json!(5),
        ),
        (
            "containers[envoy].livenessProbe.httpGet.path",
            "String",
            "/health?a=%20",
            format!("{c}/livenessProbe/httpGet/path"),
            json!("/health?a=%20"),
        ),
        (
            "containers[envoy].livenessProbe.httpGet.port",
            "Integer",
            "80",
            format!("{c}/livenessProbe/httpGet/port"),
            json!(80),
        ),
        (
            "containers[envoy].readinessProbe.tcpSocket.port",
            "String",
            "http",
            format!("{c}/readinessProbe/tcpSocket/port"),
            json!("http"),
        ),
        (
            "containers[envoy].readinessProbe.tcpSocket.port",
            "String",
            "8080",
            format!("{c}/readinessProbe/tcpSocket/port"),
            json!(8080),
        ),
        ("containers[envoy].startupProbe.grpc.port", "Integer", "80", format!("{c}/startupProbe/grpc/port"), json!(80)),
        (
            "containers[envoy].lifecycle.preStop.sleep.seconds",
            "Duration",
            "10s",
            format!("{c}/lifecycle/preStop/sleep/seconds"),
            json!(10),
        ),
        ("initContainers[setup].args[0]", "String", "b", "/initContainers/0/args/0".to_owned(), json!("b")),
        ("env[PROXY].value", "String", "b", "/env/0/value".to_owned(), json!("b")),
        (
            "volumes[tmp].emptyDir.sizeLimit",
            "Quantity",
            "1Gi",
            "/volumes/0/emptyDir/sizeLimit".to_owned(),
            json!("1Gi"),
        ),
        ("volumes[conf].configMap.name", "String", "other", "/volumes/1/configMap/name".to_owned(), json!("other")),
        (
            "volumes[tls].secret.secretName",
            "String",
            "other",
            "/volumes/2/secret/secretName".to_owned(),
            json!("other"),
        ),
        ("metadata.labels[app]", "String", "b", "/metadata/labels/app".to_owned(), json!("b")),
        ("metadata.labels[x.example/y]", "Quantity", "5m", "/metadata/labels/x.example~1y".to_owned(), json!("5m")),
        (
            "metadata.annotations[a.example/b]",
            "String",
            "x\ny",
            "/metadata/annotations/a.example~1b".to_owned(),
            json!("x\ny"),
        ),
        (
            "pod.terminationGracePeriodSeconds.atLeast",
            "Duration",
            "2m",
            "/pod/terminationGracePeriodSeconds/atLeast".to_owned(),
            json!(120),
        ),
    ];
    for (path, of_type, text, pointer, expected) in &rows {
        let mut original = without_marks();
        // A value of the type, where all types may be.
        if let Some(value) = original.pointer_mut(pointer).filter(|value| *value == "plain") {
            let texts = [("Integer", "1"), ("Boolean", "true"), ("Duration", "1s"), ("Quantity", "1")];
            *value = texts.iter().find(|(of, _)| of == of_type).map_or("plain", |(_, text)| text).into();
        }
        let (parsed, faults) = parse_in(&original, &json!([{ "name": "x", "type": of_type, "paths": [path] }]));
        assert_eq!(faults, [""; 0], "{path}");
        let parameter = parsed.iter().next().unwrap();
        assert_eq!(parameter.judge(text).as_deref(), Ok(*text), "{path}");
        assert!(parameter.may_be(text));
        let before = of(&original);
        let after = json!(parsed.applied(&before, &[Some((*text).to_owned())]));
        assert_eq!(at(&after, pointer), expected, "{path}");
        assert_eq!(parsed.applied(&before, &[None]), before, "{path}");
        let changed = differences(&json!(before), &after);
        assert!(changed.iter().all(|changed| pointer.starts_with(changed)), "{path}: {changed:?}");
        assert_eq!(parsed.applied(&of(&after), &[Some((*text).to_owned())]), of(&after), "{path}: twice is once");
    }
    for leaf in leaves::LEAVES.iter().filter(|leaf| leaf.form != Form::Switch) {
        let is_tried = |(path, ..): &(&str, _, _, _, _)| leaves::Leaf::of(&tokens::tokens(path).unwrap()) == Some(leaf);
        assert!(rows.iter().any(is_tried), "{} has no row", leaf.path);
    }
}

/// The pointers of the values that differ.
fn differences(before: &Value, after: &Value) -> Vec<String> {
    fn walk(before: &Value, after: &Value, path: &str, found: &mut Vec<String>) {
        let key = |key: &str| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        match (before, after) {
            (Value::Object(a), Value::Object(b)) => {
                let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
                for name in keys {
                    walk(a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null), &key(name), found);
                }
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                for (index, (a, b)) in a.iter().zip(b).enumerate() {
                    walk(a, b, &key(&index.to_string()), found);
                }
            }
            (a, b) if a == b => {}
            _ => found.push(path.to_owned()),
        }
    }
    let mut found = Vec::new();
    walk(before, after, "", &mut found);
    found
}

#[test]
fn false_leaves_an_item_out() {
    let mut original = without_marks();
    original["share"] = json!([{ "to": "envoy", "env": ["*"] }, { "to": "other", "env": ["*"] }]);
    original["containers"][0]["env"] = json!([{ "name": "A", "value": "a" }]);
    for (path, pointer, is_list_gone) in [
        ("containers[envoy]", "/containers/1", false),
        ("containers[other].env[A]", "/containers/0/env", true),
        ("initContainers[setup]", "/initContainers", true),
        ("containers[envoy].env[SERVICE]", "/containers/1/env/3", false),
        ("volumes[tls]", "/volumes/2", false),
        ("env[OPTS]", "/env/1", false),
    ] {
        let (parsed, faults) = parse_in(&original, &json!([{ "name": "x", "type": "Boolean", "paths": [path] }]));
        assert_eq!(faults, [""; 0], "{path}");
        assert_eq!(parsed.0[0].default(), Some("true"));
        assert_eq!(parsed.applied(&of(&original), &[Some("true".to_owned())]), of(&original));
        let after = json!(parsed.applied(&of(&original), &[Some("false".to_owned())]));
        assert_eq!(after.pointer(pointer), None, "{path}");
        assert!(is_list_gone || after.pointer(&pointer[..pointer.len() - 2]).is_some(), "{path}");
        assert_eq!(after["share"].as_array().unwrap().len(), if path == "containers[envoy]" { 1 } else { 2 });
    }
    let all = json!([
        { "name": "a", "type": "Boolean", "paths": ["containers[other]", "containers[envoy].env[SERVICE]", "containers[envoy].env[CONFIG]", "volumes[tmp]", "volumes[conf]"] },
        { "name": "b", "paths": ["containers[envoy].env[SECRET].valueFrom.secretKeyRef.name"] },
    ]);
    let (parsed, faults) = parse_in(&original, &all);
    assert_eq!(faults, [""; 0]);
    let after = json!(parsed.applied(&of(&original), &[Some("false".to_owned()), Some("t".to_owned())]));
    assert_eq!(after["containers"][0]["name"], "envoy");
    let env = after["containers"][0]["env"].as_array().unwrap();
    assert_eq!((env.len(), &env[0]["valueFrom"]["secretKeyRef"]["name"]), (2, &json!("t")));
    assert_eq!(after["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_mark_is_replaced_in_its_text_and_a_value_refers_to_nothing() {
    let (parsed, faults) =
        parse_in(&template(), &json!([{ "name": "level" }, { "name": "b", "paths": ["env[PROXY].value"] }]));
    assert_eq!(faults, [""; 0]);
    let level = &parsed.0[0];
    assert!(level.is_required() && level.default().is_none());
    assert_eq!(level.places().collect::<Vec<_>>(), ["containers[envoy].args[0]"]);
    for (text, expected) in [
        ("info", "--level=info"),
        ("", "--level="),
        ("$(scpol.b)", "--level=$$(scpol.b)"),
        ("$", "--level=$$"),
        ("a\n\"'", "--level=a\n\"'"),
    ] {
        assert_eq!(level.judge(text).as_deref(), Ok(text));
        let after = parsed.applied(&of(&template()), &[Some(text.to_owned()), Some("x".to_owned())]);
        assert_eq!(json!(after)["containers"][1]["args"], json!([expected, "$$(scpol.level)", "plain"]));
    }
    for (text, expected) in [
        ("$(scpol.a)$(scpol.a)", "11"),
        ("$(scpol.a)(A)", "1(A)"),
        ("$$$(scpol.a)", "$$1"),
        ("$$(scpol.a)", "$$(scpol.a)"),
        ("$(A$(scpol.a))", "$(A$(scpol.a))"),
        ("$(A", "$(A"),
        ("$x$(scpol.a)$", "$x1$"),
        ("é$(scpol.a)é", "é1é"),
        ("$(scpol.b)", "$(scpol.b)"),
    ] {
        assert_eq!(marks::filled(text, "a", "1"), expected);
    }
}

#[test]
fn the_value_of_a_place_is_that_of_a_mark_where_nothing_else_gives_one() {
    let level = json!([{ "name": "level", "paths": ["containers[envoy].env[SERVICE].value"], "enum": ["a", "b"] }]);
    let (parsed, faults) = parse_in(&template(), &level);
    assert_eq!(faults, [""; 0]);
    assert!(!parsed.0[0].is_required());
    let after = json!(parsed.applied(&of(&template()), &[None]));
    assert_eq!(after["containers"][1]["args"][0], "--level=a");
    assert_eq!(after["containers"][1]["env"][0]["value"], "a");
    let mut refers = template();
    refers["containers"][1]["env"][0]["value"] = json!("$(POD)");
    let (parsed, _) =
        parse_in(&refers, &json!([{ "name": "level", "paths": ["containers[envoy].env[SERVICE].value"] }]));
    assert!(parsed.0[0].is_required() && parsed.0[0].default() == Some("$(POD)"));
}

#[test]
fn a_wrong_value_is_told_with_the_right_spelling() {
    let memory = one(
        &json!({ "name": "m", "type": "Quantity", "paths": ["containers[other].resources.limits.memory"], "minimum": "64Mi", "maximum": "1Gi" }),
    );
    let port =
        one(&json!({ "name": "p", "type": "Integer", "paths": ["containers[envoy].ports[http].containerPort"] }));
    let wait = one(
        &json!({ "name": "w", "type": "Duration", "paths": ["containers[envoy].livenessProbe.periodSeconds"], "maximum": "2h" }),
    );
    let flag = one(&json!({ "name": "f", "type": "Boolean", "paths": ["containers[envoy]"] }));
    let level =
        one(&json!({ "name": "l", "paths": ["containers[envoy].args[2]"], "enum": ["debug", "info", "plain"] }));
    let short =
        one(&json!({ "name": "s", "paths": ["containers[envoy].args[2]"], "pattern": "[a-z]+|x", "maxLength": 5 }));
    let tag = one(&json!({ "name": "t", "paths": ["containers[envoy].image:tag"] }));
    let image = one(&json!({ "name": "i", "paths": ["containers[envoy].image"] }));
    let policy = one(&json!({ "name": "y", "paths": ["containers[envoy].imagePullPolicy"] }));
    let path = one(&json!({ "name": "h", "paths": ["containers[envoy].livenessProbe.httpGet.path"] }));
    let label = one(&json!({ "name": "b", "paths": ["metadata.labels[app]"] }));
    let gpu = one(
        &json!({ "name": "g", "type": "Quantity", "paths": ["containers[other].resources.limits[example.com/gpu]"] }),
    );
    let between = "must be a quantity from `64Mi` to `1Gi`, is";
    let ports = "must be a whole number from `1` to `65535`, is";
    let waits = "must be a duration from `1s` to `2h`, is";
    for (parameter, text, expected) in [
        (&memory, "2GB", format!("{between} `2GB`; it is spelt `2G`")),
        (&memory, "512MB", format!("{between} `512MB`; write `512M`")),
        (&memory, "1gb", format!("{between} `1gb`; write `1G`")),
        (&memory, "0.5 GiB", format!("{between} `0.5 GiB`; write `0.5Gi`")),
        (&memory, "128m", format!("{between} `128m`; write `128Mi`")),
        (&memory, "128mi", format!("{between} `128mi`; write `128Mi`")),
        (&memory, "-1", format!("{between} `-1`")),
        (&memory, "2Gi", format!("{between} `2Gi`")),
        (&memory, "1e400", format!("{between} `1e400`")),
        (&memory, "１２８Mi", format!("{between} `１２８Mi`; write `128Mi`")),
        (&memory, "", format!("{between} empty")),
        (&memory, "$(MEM)", format!("{between} `$(MEM)`")),
        (&memory, "64Mi\n", format!("{between} `64Mi\\n`; write `64Mi`")),
        (&port, "0", format!("{ports} `0`")),
        (&port, "65536", format!("{ports} `65536`")),
        (&port, "+80", format!("{ports} `+80`; write `80`")),
        (&port, " 80", format!("{ports} ` 80`; write `80`")),
        (&port, "080", format!("{ports} `080`; write `80`")),
        (&port, "1e3", format!("{ports} `1e3`; write `1000`")),
        (&port, "8,080", format!("{ports} `8,080`; write `8080`")),
        (&port, "٨٠", format!("{ports} `٨٠`; write `80`")),
        (&port, "1e400", format!("{ports} `1e400`")),
        (&port, "9223372036854775808", format!("{ports} `9223372036854775808`")),
        (&port, "80.5", format!("{ports} `80.5`")),
        (&port, "0x50", format!("{ports} `0x50`")),
        (&port, "-0", format!("{ports} `-0`; it is spelt `0`")),
        (&wait, "30sec", format!("{waits} `30sec`; write `30s`")),
        (&wait, "90", format!("{waits} `90`; write `90s`")),
        (&wait, "1.5h", format!("{waits} `1.5h`; write `1h30m`")),
        (&wait, "5 min", format!("{waits} `5 min`; write `5m`")),
        (&wait, "500ms", format!("{waits} `500ms`")),
        (&wait, "1d", format!("{waits} `1d`; it is spelt `24h`")),
        (&wait, "9999999h", format!("{waits} `9999999h`")),
        (&flag, "yes", "must be `true` or `false`, is `yes`; write `true`".to_owned()),
        (&flag, "False", "must be `true` or `false`, is `False`; write `false`".to_owned()),
        (&flag, "maybe", "must be `true` or `false`, is `maybe`".to_owned()),
        (&level, "debgu", "must be one of `debug`, `info`, `plain`, is `debgu`; write `debug`".to_owned()),
        (&level, "x`y", "must be one of `debug`, `info`, `plain`, is `x`y`".to_owned()),
        (&short, "a1", "must match `[a-z]+|x`, is `a1`".to_owned()),
        (&short, "a\n", "must match `[a-z]+|x`, is `a\\n`".to_owned()),
        (&short, "abcdef", "must have at most 5 characters, has 6".to_owned()),
        (&tag, "a:b", "must be the tag of an image: at most 128 letters, digits, `_`, `.` and `-`, is `a:b`".to_owned()),
        (&image, "a b", "must be an image, such as `registry.example.com/agent:1.2.3`, is `a b`".to_owned()),
        (&image, "", "must be an image, such as `registry.example.com/agent:1.2.3`, is empty".to_owned()),
        (&policy, "always", "must be one of `Always`, `IfNotPresent`, `Never`, is `always`; write `Always`".to_owned()),
        (&path, "//evil", "must be a path that begins with one `/`, of printable ASCII characters without blanks, is `//evil`".to_owned()),
        (&label, "a b", "must be the value of a label: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, is `a b`".to_owned()),
        (&gpu, "0.5", "must be a whole number, is `0.5`".to_owned()),
    ] {
        assert_eq!(parameter.judge_openly(text), Err(expected), "{text}");
    }
    let hostile = "x".repeat(256 * 1024);
    for parameter in [&memory, &port, &wait, &flag, &level, &short, &tag, &image, &path, &label] {
        assert_eq!(parameter.judge(&hostile), Err("must have at most 1024 bytes, has 262144".to_owned()));
        assert!(!parameter.may_be(&hostile) && !parameter.may_be("a\0"));
        assert!(parameter.judge("a\0b").unwrap_err().contains("NUL"));
        let told = parameter.judge(&format!("\u{1b}[2J{}", "y".repeat(900))).unwrap_err();
        assert!(told.len() < 300 && !told.contains('\u{1b}'), "{told}");
    }
    for (parameter, good) in
        [(&memory, "65536Ki"), (&memory, "0.1G"), (&port, "1"), (&wait, "2h"), (&short, "abc"), (&gpu, "2000m")]
    {
        assert_eq!(parameter.judge(good).as_deref(), Ok(good));
    }
    assert!(memory.may_be("5Gi") && !memory.may_be("5GB") && level.may_be("other") && !port.may_be("0"));
    for (parameter, expected) in [
        (&memory, "64Mi to 1Gi"),
        (&port, "1 to 65535"),
        (&wait, "1s to 2h"),
        (&flag, "true or false"),
        (&level, "one of `debug`, `info`, `plain`"),
        (&short, "a text that matches `[a-z]+|x`, of at most 5 characters"),
        (&policy, "one of `Always`, `IfNotPresent`, `Never`"),
        (&gpu, "a quantity"),
        (&one(&json!({ "name": "a", "paths": ["env[PROXY].value"] })), "any text of at most 1024 bytes"),
        (
            &one(&json!({ "name": "a", "paths": ["env[PROXY].value"], "maxLength": 63 })),
            "any text of at most 63 characters",
        ),
        (
            &one(
                &json!({ "name": "a", "type": "Quantity", "minimum": 1, "paths": ["volumes[tmp].emptyDir.sizeLimit"] }),
            ),
            "a quantity of at least 1",
        ),
    ] {
        assert_eq!(parameter.allowed(), expected);
    }
}

#[test]
fn images_are_what_a_runtime_takes() {
    for (text, expected) in [
        ("a", true),
        ("busybox:1.36", true),
        ("localhost/a/b_c/d__e/f--g.h:T_1", true),
        ("REG.example.com:5000/a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", true),
        ("A", false),
        ("a/", false),
        ("/a", false),
        ("a//b", false),
        ("a:", false),
        ("a:b:c", false),
        ("a@sha256:12", false),
        ("a@sha256:0123456789abcdef0123456789abcdef", false),
        ("a@sha256:0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", false),
        ("a@md5:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", false),
        ("a___b", false),
        ("-a", false),
        ("a..b/c", false),
        ("host:x/a", false),
        (" a", false),
        ("a\n", false),
        ("аlpine", false),
    ] {
        assert_eq!(forms::is_image(text), expected, "{text}");
    }
}

#[test]
fn every_fault_is_found_with_its_field() {
    let p = |path: &str| json!([{ "name": "a", "paths": [path] }]);
    let rows = [
        // Paths.
        (
            p("containers[envoi].image"),
            "paths[0] must be in the template, which has no `containers[envoi]`; did you mean `envoy`?",
        ),
        (
            p("containers[zzz].image"),
            "paths[0] must be in the template, which has no `containers[zzz]`; it has `other`, `envoy`",
        ),
        (
            p("containers[envoy].imag"),
            "paths[0] must be a place that a parameter can set; did you mean `image` in `containers[envoy]`?",
        ),
        (
            p("containers[envoy].resources"),
            "paths[0] must be a place that a parameter can set; those in `containers[envoy].resources` are `limits`, `requests`",
        ),
        (
            p("containers[envoy].livenessProbe.host"),
            "paths[0] must be a place that a parameter can set; those in `containers[envoy].livenessProbe` are",
        ),
        (
            p("containers[envoy].livenessProbe.httpGet.host"),
            "paths[0] must be a place that a parameter can set; did you mean",
        ),
        (
            p("containers[envoy].securityContext.runAsUser"),
            "paths[0] must be a place that a parameter can set; those in `containers[envoy]` are `args[INDEX]`",
        ),
        (p("containers[envoy].ports[http].hostPort"), "paths[0] must be a place that a parameter can set"),
        (p("containers[envoy].name"), "paths[0] must be a place that a parameter can set"),
        (p("containers"), "paths[0] must be a place that a parameter can set; those in `containers` are `[NAME]`"),
        (
            p("conta"),
            "paths[0] must be a place that a parameter can set; those in `spec.template` are `containers[NAME]`, `env[NAME]`, `initContainers[NAME]`",
        ),
        (
            p("spec.template.containers[envoy].image"),
            "paths[0] must begin in `spec.template`; write `containers[envoy].image`",
        ),
        (p(".x"), "paths[0] must be a path, such as `containers[envoy].image`, not `.x`"),
        (p("containers[envoy"), "paths[0] must be a path, such as"),
        (
            p("containers[envoy].resources.limits.example.com/gpu"),
            "paths[0] must be a place of the template, and nothing is below `containers[envoy].resources.limits.example`",
        ),
        (p("containers[envoy].args[3]"), "paths[0] must be in the template, which has no `containers[envoy].args[3]`"),
        (p("containers[envoy].args[01]"), "paths[0] must be in the template"),
        (
            p("containers[envoy].env[NO].value"),
            "paths[0] must be in the template, which has no `containers[envoy].env[NO]`",
        ),
        (
            p("containers[envoy].env[SECRET].value"),
            "paths[0] must be a variable with `value`, and this one has `valueFrom`",
        ),
        (p("env[OPTS].value"), "paths[0] must be a variable without `merge`"),
        (
            p("containers[other].livenessProbe.httpGet.path"),
            "paths[0] must be in the template, which has no `containers[other].livenessProbe`; add it there",
        ),
        (
            p("containers[envoy].readinessProbe.httpGet.path"),
            "paths[0] must be in the template, which has no `containers[envoy].readinessProbe.httpGet`; add it there",
        ),
        (
            p("volumes[conf].secret.secretName"),
            "paths[0] must be in the template, which has no `volumes[conf].secret`; add it there",
        ),
        (p("metadata.labels[scpol.dev/x]"), "paths[0] must not have a key under `scpol.dev`"),
        (p("metadata.labels[a b]"), "paths[0] must have a key such as"),
        (
            p("metadata.annotations[container.apparmor.security.beta.kubernetes.io/envoy]"),
            "paths[0] must not be `container.apparmor.security.beta.kubernetes.io/envoy`, which Kubernetes itself reads",
        ),
        (
            json!([{ "name": "a", "type": "Quantity", "paths": ["containers[envoy].resources.limits.memroy"] }]),
            "paths[0] must name a resource: there is no such resource",
        ),
        (
            json!([{ "name": "a", "type": "Quantity", "paths": ["containers[envoy].image"] }]),
            "paths[0] must be a place for `type: Quantity`, and `containers[envoy].image` is for `String`",
        ),
        (
            p("containers[envoy]"),
            "paths[0] must be a place for `type: String`, and `containers[envoy]` is for `Boolean`",
        ),
        // Names, places and annotations that are there twice.
        (json!([{ "name": "a" }]), "paths must name a place, or the template must have `$(scpol.a)`"),
        (
            json!([{ "name": "a", "paths": ["env[PROXY].value"] }, { "name": "a", "paths": ["containers[envoy].args[2]"] }]),
            "name must be unique",
        ),
        (
            json!([{ "name": "a", "paths": ["env[PROXY].value"] }, { "name": "b", "paths": ["env[PROXY].value"] }]),
            "paths[0] must be the place of one parameter, once: `a` has it already",
        ),
        (
            json!([{ "name": "a", "paths": ["containers[envoy].ports[http].containerPort", "containers[envoy].ports[8080].containerPort"], "type": "Integer" }]),
            "paths[1] must be the place of one parameter",
        ),
        (
            json!([{ "name": "a", "paths": ["containers[envoy].image"] }, { "name": "b", "paths": ["containers[envoy].image:tag"] }]),
            "paths[0] must be the place of one parameter",
        ),
        (
            json!([{ "name": "a", "annotation": "x.y/z", "paths": ["env[PROXY].value"] }, { "name": "b", "annotation": "x.y/z", "paths": ["containers[envoy].args[2]"] }]),
            "annotation must differ from that of `a`",
        ),
        (json!([{ "name": "a", "annotation": "a b", "paths": ["env[PROXY].value"] }]), "annotation must be a key"),
        (
            json!([{ "name": "a", "annotation": "scpol.dev/inject", "paths": ["env[PROXY].value"] }]),
            "annotation must not be under `scpol.dev`, but for `mesh.scpol.dev/`",
        ),
        (
            json!([{ "name": "a", "annotation": "injected.scpol.dev/p", "paths": ["env[PROXY].value"] }]),
            "annotation must not be under `scpol.dev`",
        ),
        (
            json!([{ "name": "a", "annotation": "", "fromNamespace": true, "paths": ["env[PROXY].value"] }]),
            "fromNamespace must be left out",
        ),
        // Limits.
        (
            json!([{ "name": "a", "minimum": 1, "paths": ["env[PROXY].value"] }]),
            "minimum must be left out, because values of `type: String` have no order",
        ),
        (
            json!([{ "name": "a", "type": "Boolean", "maximum": "1", "paths": ["containers[envoy]"] }]),
            "maximum must be left out",
        ),
        (
            json!([{ "name": "a", "type": "Integer", "enum": ["1"], "paths": ["containers[envoy].ports[http].containerPort"] }]),
            "enum must be left out",
        ),
        (
            json!([{ "name": "a", "type": "Quantity", "pattern": "1", "paths": ["volumes[tmp].emptyDir.sizeLimit"] }]),
            "pattern must be left out",
        ),
        (
            json!([{ "name": "a", "type": "Quantity", "maxLength": 1, "paths": ["volumes[tmp].emptyDir.sizeLimit"] }]),
            "maxLength must be left out",
        ),
        (
            json!([{ "name": "a", "type": "Quantity", "minimum": "1Gi", "maximum": "1G", "paths": ["volumes[tmp].emptyDir.sizeLimit"] }]),
            "minimum must not be above `maximum`",
        ),
        (
            json!([{ "name": "a", "type": "Quantity", "minimum": "64MB", "paths": ["volumes[tmp].emptyDir.sizeLimit"] }]),
            "minimum must be a quantity, is `64MB`; write `64M`",
        ),
        (
            json!([{ "name": "a", "type": "Integer", "minimum": "64Mi", "paths": ["containers[envoy].ports[http].containerPort"] }]),
            "minimum must be a whole number, is `64Mi`",
        ),
        (
            json!([{ "name": "a", "type": "Duration", "minimum": 5, "paths": ["containers[envoy].livenessProbe.periodSeconds"] }]),
            "minimum must be a duration, is `5`; write `5s`",
        ),
        (
            json!([{ "name": "a", "type": "Integer", "minimum": 70000, "paths": ["containers[envoy].livenessProbe.httpGet.port", "containers[envoy].ports[http].containerPort"] }]),
            "minimum must be a whole number from `1` to `65535`, because its places take no other",
        ),
        (
            json!([{ "name": "a", "pattern": "(", "paths": ["env[PROXY].value"] }]),
            "pattern must be a regular expression of RE2",
        ),
        (
            json!([{ "name": "a", "pattern": "a)|(b", "paths": ["env[PROXY].value"] }]),
            "pattern must be a regular expression of RE2",
        ),
        (
            json!([{ "name": "a", "pattern": "\\Qa", "paths": ["env[PROXY].value"] }]),
            "pattern must be a regular expression of RE2",
        ),
        (
            json!([{ "name": "a", "pattern": "((((a{100}){10}){10}){10}){10}", "paths": ["env[PROXY].value"] }]),
            "pattern must be a regular expression of RE2",
        ),
        (
            json!([{ "name": "a", "enum": ["http://localhost", "http://localhost"], "paths": ["env[PROXY].value"] }]),
            "enum[1] must be there once",
        ),
        (
            json!([{ "name": "a", "enum": ["Always", "always"], "paths": ["containers[envoy].imagePullPolicy"] }]),
            "enum[1] must be one of `Always`",
        ),
        // The value in the template.
        (
            json!([{ "name": "a", "type": "Quantity", "maximum": "128Mi", "paths": ["containers[envoy].resources.limits.memory"] }]),
            "paths[0] must have a value in the template that fits: must be a quantity of at most `128Mi`, is `256Mi`",
        ),
        (
            json!([{ "name": "a", "enum": ["b"], "paths": ["env[PROXY].value"] }]),
            "paths[0] must have a value in the template that fits: must be one of `b`",
        ),
        (
            json!([{ "name": "a", "type": "Integer", "paths": ["env[PROXY].value"] }]),
            "paths[0] must have a value in the template that fits: must be a whole number",
        ),
        (
            json!([{ "name": "a", "pattern": "http:", "paths": ["env[PROXY].value"] }]),
            "paths[0] must have a value in the template that fits: must match `http:`",
        ),
    ];
    for (parameters, expected) in rows {
        let (_, faults) = parse_in(&without_marks(), &parameters);
        let last = parameters.as_array().unwrap().len() - 1;
        let expected = format!("spec.parameters[{last}].{expected}");
        assert!(faults.iter().any(|fault| fault.starts_with(&expected)), "{expected}\n{faults:#?}");
        assert_eq!(faults.len(), 1, "{faults:#?}");
    }
}

#[test]
fn every_fault_of_a_mark_is_found_with_its_field() {
    let (_, faults) = parse_in(&template(), &json!([]));
    assert_eq!(
        faults,
        [
            "spec.template.containers[1].args[0] must name a parameter, and no parameter is called `level`; declare it, or write `$$(scpol.level)` for the text itself"
        ]
    );
    let (_, faults) = parse_in(&template(), &json!([{ "name": "levle", "paths": ["env[PROXY].value"] }]));
    assert!(faults[0].ends_with("did you mean `$(scpol.levle)`?"), "{faults:?}");
    let (_, faults) = parse_in(&template(), &json!([{ "name": "level", "paths": ["containers[envoy].args[0]"] }]));
    assert!(faults[0].starts_with("spec.parameters[0].paths[0] must not replace the whole of a text"), "{faults:?}");
    let (_, faults) = parse_in(&template(), &json!([{ "name": "level", "annotation": "" }]));
    assert_eq!(
        faults,
        ["spec.parameters[0].expression must be given, because `$(scpol.level)` has no value without it"]
    );
    let mut odd = without_marks();
    odd["env"][1]["value"] = json!("-x=$(scpol.level)");
    let (_, faults) = parse_in(&odd, &json!([{ "name": "level" }]));
    assert_eq!(faults, ["spec.template.env[1].value must have no `$(scpol.NAME)`, because it has `merge`"]);
    odd["env"][1]["value"] = json!("-x");
    odd["containers"][1]["command"][1] = json!("$(scpol.level)".repeat(65));
    odd["containers"][1]["env"][0]["value"] = json!("$(scpol.)");
    let (_, faults) = parse_in(&odd, &json!([{ "name": "level" }]));
    assert!(faults[0].starts_with("spec.template.containers[1].env[0].value must name a parameter"), "{faults:?}");
    assert_eq!(faults[1], "spec.template must have at most 64 places `$(scpol.NAME)`, has 66");
    let parameters = declared(&json!([{ "name": "a", "paths": ["env[PROXY].value"] }]));
    let (_, faults) = Parameters::parse("injected", &parameters, &of(&without_marks()));
    assert_eq!(faults[0].0, "spec.parameters[0].annotation");
    assert!(faults[0].1.starts_with("must be given, because"), "{faults:?}");
}

#[test]
fn the_annotation_has_the_name_of_the_policy_unless_it_is_given() {
    for (annotation, expected) in [
        (None, Some("mesh.scpol.dev/a")),
        (Some(""), None),
        (Some("x.y/z"), Some("x.y/z")),
        (Some("mesh.scpol.dev/b"), Some("mesh.scpol.dev/b")),
    ] {
        let mut parameter = json!({ "name": "a", "paths": ["env[PROXY].value"] });
        if let Some(annotation) = annotation {
            parameter["annotation"] = annotation.into();
        }
        assert_eq!(one(&parameter).annotation.as_deref(), expected);
    }
}

#[test]
fn the_identity_has_what_decides_the_meaning_of_a_value() {
    let identity = |more: &Value| {
        let mut parameter = json!({ "name": "a", "paths": ["env[PROXY].value"] });
        parameter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        parse_in(&without_marks(), &json!([parameter])).0.identity()
    };
    let first = identity(&json!({}));
    assert_eq!(first, json!([{ "name": "a", "type": "String", "places": ["env[PROXY].value"] }]));
    assert_eq!(first, identity(&json!({ "description": "x", "annotation": "", "maxLength": 20, "pattern": ".*" })));
    assert_ne!(first, identity(&json!({ "paths": ["containers[envoy].args[2]"] })));
    assert_ne!(first, identity(&json!({ "type": "Boolean" })));
    assert_ne!(first, identity(&json!({ "name": "b" })));
}

#[test]
fn images_and_references_take_what_the_operator_allows() {
    use crate::api::rules::{Rules, check};
    use crate::api::trust::{Power, Trust};
    let found = |parameter: Value, images: &[&str], powers: &[Power]| -> Vec<String> {
        let spec = json!({ "template": {
            "containers": [{ "name": "c", "image": "good/a:1" }],
            "volumes": [{ "name": "v", "secret": { "secretName": "s" } }],
        }, "parameters": [parameter] });
        let images = images.iter().map(|image| (*image).to_owned()).collect();
        let trust = Trust { images, powers: powers.iter().copied().collect(), ..Trust::default() };
        let rules = Rules { trust, ..Rules::default() };
        let found = check("mesh", &serde_json::from_value(spec).unwrap(), &rules).into_iter();
        found.map(|fault| format!("{} {} {}", fault.code.name(), fault.field, fault.message)).collect()
    };
    let image = json!({ "name": "a", "paths": ["containers[c].image"] });
    let listed = json!({ "name": "a", "paths": ["containers[c].image"], "enum": ["good/a:1", "bad/a:1"] });
    let tag = json!({ "name": "a", "paths": ["containers[c].image:tag"] });
    let tags = json!({ "name": "a", "paths": ["containers[c].image:tag"], "enum": ["1", "2"] });
    let secret = json!({ "name": "a", "paths": ["volumes[v].secret.secretName"] });
    let refused = found(image.clone(), &[], &[]);
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].starts_with("ImageNotAllowed spec.parameters[0].paths[0]")
            && refused[0].ends_with("give an `enum`, or start the operator with `--allowed-images`"),
        "{refused:?}"
    );
    for lawful in [
        found(image, &["good"], &[]),
        found(listed.clone(), &[], &[]),
        found(tag.clone(), &[], &[]),
        found(tag, &["good"], &[]),
        found(secret.clone(), &[], &[Power::References]),
    ] {
        assert_eq!(lawful, [""; 0]);
    }
    let refused = found(listed, &["good"], &[]);
    assert!(refused.len() == 1 && refused[0].starts_with("ImageNotAllowed spec.parameters[0].enum[1]"), "{refused:?}");
    let refused = found(tags, &["good/a:1"], &[]);
    assert!(refused.len() == 1 && refused[0].starts_with("ImageNotAllowed spec.parameters[0].enum[1]"), "{refused:?}");
    let refused = found(secret, &[], &[Power::HostPaths]);
    assert!(refused.len() == 1 && refused[0].starts_with("PowerNotGranted spec.parameters[0].paths[0]"), "{refused:?}");
    let refused = found(json!({ "name": "a", "paths": ["containers[c].nam"] }), &[], &[]);
    assert!(refused[0].starts_with("ParameterInvalid spec.parameters[0].paths[0] must be a place"), "{refused:?}");
}

#[test]
fn no_leaf_touches_what_security_depends_on() {
    for leaf in leaves::LEAVES {
        for word in ["securityContext", "host", "serviceAccount", "hostPath", "mountPath", "tolerations", "sharePro"] {
            assert!(!leaf.path.contains(word), "{}", leaf.path);
        }
        assert!(!leaf.path.ends_with("NAME].name"));
        for word in ["livenessProbe", "startupProbe"] {
            let path = leaf.path.replace("livenessProbe|readinessProbe|startupProbe", word);
            let path = path.replace("livenessProbe|startupProbe", word);
            assert_eq!(leaves::Leaf::of(&tokens::tokens(&path).unwrap()), Some(leaf));
        }
    }
    assert!(markdown().lines().count() == leaves::LEAVES.len() + 2);
}

/// Parameters of every type, with places of every form.
fn all() -> Parameters {
    let (parsed, faults) = parse_in(
        &template(),
        &json!([
            { "name": "level" },
            { "name": "image", "paths": ["containers[other].image"] },
            { "name": "tag", "paths": ["containers[envoy].image:tag"] },
            { "name": "memory", "type": "Quantity", "paths": ["containers[envoy].resources.limits.memory", "volumes[tmp].emptyDir.sizeLimit"], "maximum": "1Gi" },
            { "name": "port", "type": "Integer", "paths": ["containers[envoy].ports[http].containerPort", "metadata.labels[port]"] },
            { "name": "wait", "type": "Duration", "paths": ["containers[envoy].livenessProbe.periodSeconds", "metadata.annotations[a/b]"] },
            { "name": "label", "paths": ["metadata.labels[app]"] },
            { "name": "on", "type": "Boolean", "paths": ["initContainers[setup]", "containers[envoy].env[CONFIG]"] },
            { "name": "arg", "paths": ["containers[envoy].args[2]", "containers[envoy].env[SERVICE].value"], "maxLength": 64 },
            { "name": "path", "paths": ["containers[envoy].livenessProbe.httpGet.path"] },
        ]),
    );
    assert_eq!(faults, [] as [String; 0]);
    parsed
}

const PLACES: [&str; 14] = [
    "/containers/0/image",
    "/containers/1/args/0",
    "/containers/1/args/2",
    "/containers/1/env",
    "/containers/1/image",
    "/containers/1/livenessProbe/httpGet/path",
    "/containers/1/livenessProbe/periodSeconds",
    "/containers/1/ports/0/containerPort",
    "/containers/1/resources/limits/memory",
    "/initContainers",
    "/metadata/annotations",
    "/metadata/labels",
    "/volumes/0/emptyDir",
    "/pod",
];

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9]{1,20}(Ki|Mi|Gi|m|k|s|h|)",
        "(true|false)",
        "[-a-z$()./:@{}\"'\n\\x00]{0,12}",
        Just("$(scpol.level)".to_owned()),
        Just("x".repeat(2000)),
    ]
}

proptest! {
    #[test]
    fn a_value_is_refused_or_changes_its_places_alone(values in prop::collection::vec(texts(), 10)) {
        let written = template();
        let (parameters, original) = (all(), of(&written));
        let judged: Vec<Option<String>> =
            parameters.iter().zip(&values).map(|(parameter, text)| parameter.judge(text).ok()).collect();
        for (parameter, (text, judged)) in parameters.iter().zip(values.iter().zip(&judged)) {
            prop_assert!(judged.as_ref().is_none_or(|judged| judged == text && parameter.may_be(text)));
        }
        let applied = parameters.applied(&original, &judged);
        let (before, after) = (json!(original), json!(applied));
        for changed in differences(&before, &after) {
            prop_assert!(PLACES.iter().any(|place| changed.starts_with(place)), "{changed}");
        }
        // What a kubelet expands is the value itself.
        if let Some(text) = &judged[8] {
            let arg = after["containers"][1]["args"][2].as_str().map(str::to_owned).unwrap();
            prop_assert_eq!(marks::unescaped(&arg), Some(text.clone()));
        }
        if let Some(text) = &judged[0] {
            let arg = after["containers"][1]["args"][0].as_str().map(str::to_owned).unwrap();
            prop_assert_eq!(marks::unescaped(&arg), Some(format!("--level={text}")));
        }
    }

    #[test]
    fn no_path_and_no_limit_panics(path in "[a-zA-Z.\\[\\]:]{0,40}|containers\\[envoy\\][a-z.\\[\\]]{0,20}|metadata.labels\\[.{0,10}\\]", pattern in any::<String>(), bound in texts()) {
        let parameter = v1alpha1::Parameter {
            name: "a".to_owned(),
            paths: vec![path],
            pattern: Some(pattern),
            minimum: Some(v1alpha1::Bound::Text(bound.clone())),
            ..Default::default()
        };
        for of_type in [ParameterType::String, ParameterType::Integer, ParameterType::Quantity, ParameterType::Duration] {
            let parameter = v1alpha1::Parameter { r#type: of_type, ..parameter.clone() };
            let (parsed, _) = Parameters::parse("mesh", &[parameter], &of(&template()));
            let _ = parsed.0[0].judge(&bound);
        }
    }

    #[test]
    fn filling_one_mark_makes_no_other(text in "[$()a-z.]{0,8}(\\$\\(scpol\\.a\\)|\\$|x|\\()*", value in "[$()scpol.ab]{0,12}") {
        let filled = marks::filled(&text, "a", &marks::escaped(&value));
        let before: Vec<&str> = marks::of(&text).into_iter().map(|(name, _)| name).filter(|name| *name != "a").collect();
        let after: Vec<&str> = marks::of(&filled).into_iter().map(|(name, _)| name).collect();
        prop_assert_eq!(before, after, "{} {}", text, filled);
    }
}

#[test]
fn what_a_boolean_leaves_out_nothing_else_needs() {
    let template = json!({
        "containers": [
            {
                "name": "envoy", "image": "a:1", "args": ["--level=$(LEVEL)", "$$(ADDRESS)"],
                "env": [
                    { "name": "LEVEL", "value": "1" }, { "name": "ADDRESS", "value": "a" }, { "name": "URL", "value": "http://$(ADDRESS)" },
                    { "name": "CPU", "valueFrom": { "resourceFieldRef": { "containerName": "debug", "resource": "limits.cpu" } } },
                    { "name": "FILE", "valueFrom": { "fileKeyRef": { "volumeName": "file", "path": "a.env", "key": "A" } } },
                    { "name": "PROBED", "value": "1" }, { "name": "HOOKED", "value": "1" },
                ],
                "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
                "livenessProbe": { "exec": { "command": ["check", "$(PROBED)"] } },
                "lifecycle": { "preStop": { "exec": { "command": ["end", "$(HOOKED)"] } } },
            },
            { "name": "debug", "image": "a:1", "env": [{ "name": "LEVEL", "value": "1" }], "envFrom": [{ "configMapRef": { "name": "c" } }],
              "args": ["$(LEVEL)"] },
            { "name": "armed", "image": "a:1" },
            { "name": "chosen", "image": "a:1" },
        ],
        "metadata": { "annotations": {
            "container.apparmor.security.beta.kubernetes.io/armed": "runtime/default", "kubectl.kubernetes.io/default-container": "chosen",
        } },
        "env": [{ "name": "PROXY", "value": "a" }, { "name": "ALL", "value": "$(PROXY)" }],
        "volumes": [{ "name": "tmp", "emptyDir": {} }, { "name": "unused", "emptyDir": {} }, { "name": "file", "emptyDir": {} }],
    });
    let faults = |paths: &[&str]| -> Vec<String> {
        let parameters = declared(&json!([{ "name": "on", "type": "Boolean", "paths": paths }]));
        let (parsed, faults) = Parameters::parse("mesh", &parameters, &of(&template));
        assert_eq!(faults, []);
        left_behind(&parsed, &of(&template)).into_iter().map(|(field, fault)| format!("{field} {fault}")).collect()
    };
    let behind = |text: &str, place: &str| {
        vec![format!(
            "spec.parameters[0].paths[0] must not leave out what the template still refers to, with `{text}` in `{place}`; leave that \
             out, too, or remove it"
        )]
    };
    for (paths, expected) in [
        (&["containers[envoy].env[LEVEL]"][..], behind("--level=$(LEVEL)", "containers[envoy].args[0]")),
        (&["containers[envoy].env[ADDRESS]"], behind("http://$(ADDRESS)", "containers[envoy].env[URL].value")),
        (&["containers[envoy].env[ADDRESS]", "containers[envoy].env[URL]"], vec![]),
        (&["containers[envoy].env[URL]"], vec![]),
        // It may come from the ConfigMap.
        (&["containers[debug].env[LEVEL]"], vec![]),
        (
            &["containers[debug]"],
            behind("debug", "containers[envoy].env[CPU].valueFrom.resourceFieldRef.containerName"),
        ),
        (&["containers[debug]", "containers[envoy].env[CPU]"], vec![]),
        (&["containers[envoy]"], vec![]),
        (&["volumes[tmp]"], behind("tmp", "containers[envoy].volumeMounts[tmp].name")),
        (&["volumes[tmp]", "containers[envoy]"], vec![]),
        (&["volumes[unused]"], vec![]),
        (&["volumes[file]"], behind("file", "containers[envoy].env[FILE].valueFrom.fileKeyRef.volumeName")),
        (&["containers[envoy].env[PROBED]"], behind("$(PROBED)", "containers[envoy].livenessProbe.exec.command[1]")),
        (&["containers[envoy].env[HOOKED]"], vec![]),
        (
            &["containers[armed]"],
            behind("runtime/default", "metadata.annotations.container.apparmor.security.beta.kubernetes.io/armed"),
        ),
        (&["containers[chosen]"], behind("chosen", "metadata.annotations.kubectl.kubernetes.io/default-container")),
        (&["env[PROXY]"], behind("$(PROXY)", "env[ALL].value")),
        (&["env[ALL]"], vec![]),
    ] {
        assert_eq!(faults(paths), expected, "{paths:?}");
    }
}
