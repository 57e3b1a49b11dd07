//! The forms of texts that the API server checks: a predicate, and words that follow on "must be".

use crate::api::format;

/// The form of a text.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub(super) holds: fn(&str) -> bool,
    pub(super) words: &'static str,
}

pub(super) const LABEL: Form = Form {
    holds: format::is_dns_label,
    words: "at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends",
};
pub(super) const SUBDOMAIN: Form = Form {
    holds: format::is_policy_name,
    words: "a name of an object: at most 253 lower-case letters, digits, `-` and `.`",
};
/// The server takes these names as the beginning of a name.
pub(super) const BEGINNING: Form = Form {
    holds: |text| {
        let mut letters: Vec<char> = text.chars().collect();
        if letters.len() > 1 && text.ends_with('-') {
            letters.truncate(letters.len() - 2);
            letters.push('a');
        }
        format::is_policy_name(&letters.into_iter().collect::<String>())
    },
    words: SUBDOMAIN.words,
};
pub(super) const CONFIG_KEY: Form = Form {
    holds: |text| {
        let is_of = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        text.len() <= 253 && text.bytes().all(is_of) && text != "." && !text.starts_with("..")
    },
    words: "at most 253 letters, digits, `-`, `_` and `.`, and no step up",
};
pub(super) const HEADER: Form = Form {
    holds: |text| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
    words: "letters, digits and `-`",
};
pub(super) const PRINTABLE: Form = Form {
    holds: |text| text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'='),
    words: "printable ASCII characters without `=`",
};
pub(super) const ABSOLUTE: Form = Form { holds: |text| text.starts_with('/'), words: "an absolute path" };
pub(super) const NO_STEPS_UP: Form =
    Form { holds: |text| text.split('/').all(|step| step != ".."), words: "a path without the step `..`" };
pub(super) const BELOW: Form = Form {
    holds: |text| !text.starts_with('/') && (NO_STEPS_UP.holds)(text),
    words: "a relative path without the step `..`",
};
/// Because the kubelet keeps names of its own, which begin so.
pub(super) const UNRESERVED: Form = Form {
    holds: |text| (BELOW.holds)(text) && !text.starts_with(".."),
    words: "a relative path without the step `..`, which does not begin with `..`",
};
pub(super) const NOT_PADDED: Form = Form { holds: |text| text.trim() == text, words: "without blanks at both ends" };
pub(super) const APP_ARMOR: Form = Form {
    holds: |text| text.trim() == text && !text.is_empty() && text.len() <= 4095,
    words: "a name of at most 4095 bytes, without blanks at both ends",
};
pub(super) const CSI_DRIVER: Form = Form {
    holds: |text| text.len() <= 63 && format::is_policy_name(&text.to_lowercase()),
    words: "a DNS name of at most 63 characters",
};
pub(super) const ISCSI_NAME: Form = Form {
    holds: is_iscsi_name,
    words: "a name that begins with `iqn.`, `eui.` or `naa.`, e.g. `iqn.2020-01.com.example:a`",
};
pub(super) const REGISTRIES: Form = Form {
    holds: |text| text.split(',').all(is_host_and_port),
    words: "pairs such as `example.com:7861`, with commas between",
};
pub(super) const SIGNER: Form = Form { holds: is_signer, words: "a domain and a name, e.g. `example.com/signer`" };
pub(super) const TRUST_BUNDLE: Form =
    Form { holds: is_trust_bundle, words: "a name of a ClusterTrustBundle, e.g. `example.com:signer:name`" };
pub(super) const NOT_LONG: Form =
    Form { holds: |text| !text.is_empty() && text.len() <= 64 * 1024, words: "a text of at most 64 KiB" };
pub(super) const WINDOWS_USER: Form = Form { holds: is_windows_user, words: "`USER` or `DOMAIN\\USER` of Windows" };
pub(super) const DELETION_COST: Form = Form {
    holds: |text| text.parse::<i32>().is_ok() && !text.starts_with('+') && (text == "0" || !text.starts_with('0')),
    words: "a whole number of 32 bits, e.g. `-10`",
};
pub(super) const SECCOMP: Form = Form {
    holds: |text| {
        ["runtime/default", "docker/default", "unconfined"].contains(&text)
            || text.strip_prefix("localhost/").is_some_and(BELOW.holds)
    },
    words: "`runtime/default`, `unconfined` or `localhost/` with a relative path",
};
pub(super) const APP_ARMOR_OF_ANNOTATION: Form = Form {
    holds: |text| ["", "runtime/default", "unconfined"].contains(&text) || text.starts_with("localhost/"),
    words: "`runtime/default`, `unconfined` or `localhost/` with a name",
};

fn is_alphanumeric(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A name of iSCSI, as three expressions of the server have it. That of `iqn` matches anywhere.
fn is_iscsi_name(text: &str) -> bool {
    // The server takes any character after the three letters.
    let tail = |letters: &str| {
        let mut rest = text.strip_prefix(letters)?.chars();
        rest.next().map(|_| rest.as_str())
    };
    if text.starts_with("iqn") {
        return text.match_indices("iqn.").any(|(at, found)| is_after_iqn(&text[at + found.len()..]));
    }
    let fits = |letters, length| tail(letters).is_some_and(|rest| rest.len() == length && is_alphanumeric(rest));
    fits("eui", 16) || fits("naa", 32)
}

/// `2020-01.com.example:name`.
fn is_after_iqn(text: &str) -> bool {
    let Some((date, rest)) = text.split_once('.') else { return false };
    let Some((authority, name)) = rest.split_once(':') else { return false };
    let is_date = date.len() == 7
        && date.bytes().enumerate().all(|(at, byte)| if at == 4 { byte == b'-' } else { byte.is_ascii_digit() });
    let is_authority = authority.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let is_name = name.bytes().all(|byte| !b",;*&$| \t\n\r\x0c".contains(&byte));
    is_date && is_authority && !authority.is_empty() && is_name && !name.is_empty()
}

/// What Go's `net.SplitHostPort` takes.
fn is_host_and_port(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('[') else {
        return text.matches(':').count() == 1 && !text.contains(['[', ']']);
    };
    let Some((host, port)) = rest.split_once(']') else { return false };
    !host.contains('[') && port.strip_prefix(':').is_some_and(|port| !port.contains([':', '[', ']']))
}

fn is_signer(text: &str) -> bool {
    let Some((domain, path)) = text.split_once('/') else { return false };
    let is_domain = domain.len() <= 253 && domain.contains('.') && domain.split('.').all(format::is_dns_label);
    is_domain && text.len() <= 571 && path.split('.').all(format::is_policy_name)
}

fn is_trust_bundle(text: &str) -> bool {
    let (signer, name) = text.rsplit_once(':').map_or((None, text), |(signer, name)| (Some(signer), name));
    // A signer in a name has colons where the name of the signer has a slash: all of them are taken.
    signer != Some("") && format::is_policy_name(name)
}

fn is_windows_user(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte.is_ascii_control()) || text.matches('\\').count() > 1 {
        return false;
    }
    let (domain, user) = text.split_once('\\').map_or((None, text), |(domain, user)| (Some(domain), user));
    let is_user = !user.is_empty()
        && user.len() <= 104
        && !user.chars().all(|letter| ". ".contains(letter))
        && !user.contains(|letter| "\"/\\:;|=,+*?<>@[]".contains(letter));
    is_user && domain.is_none_or(is_windows_domain)
}

fn is_windows_domain(domain: &str) -> bool {
    let is_net_bios = (1..=15).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(|letter| "\\/:*?\"<>|".contains(letter));
    let is_part = |part: &str| format::is_dns_label(&part.to_ascii_lowercase());
    domain.len() < 256 && (is_net_bios || domain.split('.').all(is_part))
}
