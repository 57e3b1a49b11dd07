//! Hostile workloads: whatever somebody who may create workloads can write into one. The same seed gives the same object.
//!
//! | | what | for |
//! |---|---|---|
//! | [`written`] | objects of the right shape, with extreme and forged values: a server takes a good part of them | real servers |
//! | [`any`] | the same, of which parts are replaced by something of another type, size or depth | code without a server |

#![allow(dead_code, reason = "shared between test programs, and each uses a part")]
#![allow(unreachable_pub, reason = "shared between test programs")]

use serde_json::{Map, Value, json};

/// A workload as somebody writes it.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// The group of its resource.
    pub group: &'static str,
    /// Its resource.
    pub resource: &'static str,
    pub body: Value,
}

/// The policy whose markers are forged.
pub struct Victim<'a> {
    pub name: &'a str,
    /// The current hash of its template.
    pub hash: &'a str,
    /// The names of a container and a volume in its template.
    pub container: &'a str,
    pub volume: &'a str,
}

/// Answers to "which of n?", from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % sides as u64).unwrap_or_default()
    }

    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())].clone()
    }

    fn is(&mut self, one_of: usize) -> bool {
        self.roll(one_of) == 0
    }
}

/// The kinds, each with its group, `apiVersion`, kind and the pointer of its pod.
const KINDS: [(&str, &str, &str, &str, &str); 5] = [
    ("", "pods", "v1", "Pod", ""),
    ("apps", "deployments", "apps/v1", "Deployment", "/spec/template"),
    ("apps", "statefulsets", "apps/v1", "StatefulSet", "/spec/template"),
    ("apps", "daemonsets", "apps/v1", "DaemonSet", "/spec/template"),
    ("batch", "jobs", "batch/v1", "Job", "/spec/template"),
];

/// The resources of all objects, with their groups.
pub fn resources() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.into_iter().map(|(group, resource, ..)| (group, resource))
}

/// Control characters, an escape of terminals, a change of the direction of text, and what JSON escapes.
const CONTROLS: &str = "\u{1b}]0;x\u{7}\u{1b}[31m\u{0}\u{8}\r\n\t\u{7f}\u{9b}\u{202e}\u{2028}\"\\é\u{1f980}";

/// The object of this seed, as a client sends it. Its name is `h` with the seed.
pub fn written(seed: u64, victim: &Victim<'_>) -> Hostile {
    let mut random = Random::new(seed);
    let (group, resource, version, kind, at) = random.pick(&KINDS);
    let name = format!("h{seed}");
    let pod = json!({
        "metadata": { "labels": { "app": name }, "annotations": {} },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    let mut body = match at {
        "" => pod,
        _ if resource == "jobs" => json!({ "metadata": {}, "spec": { "template": pod } }),
        _ => {
            json!({ "metadata": {}, "spec": { "selector": { "matchLabels": { "app": name } }, "template": pod } })
        }
    };
    (body["apiVersion"], body["kind"], body["metadata"]["name"]) = (version.into(), kind.into(), name.into());
    if resource == "jobs" {
        body["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    }
    if resource == "statefulsets" {
        body["spec"]["serviceName"] = "h".into();
    }
    for _ in 0..1 + random.roll(4) {
        let Some(pod) = body.pointer_mut(at) else { break };
        match random.roll(16) {
            0 | 1 => metadata(&mut random, pod),
            2..5 => marker(&mut random, pod, victim, at),
            5 => ours(&mut random, pod),
            6 => containers(&mut random, pod, victim),
            7 => inner(&mut random, pod),
            8 => volumes(&mut random, pod, victim),
            9 => numbers_of_pod(&mut random, pod),
            10 => amounts(&mut random, pod),
            11 => ways_out(&mut random, pod),
            12 => numbers_of_owner(&mut random, &mut body),
            13 => identity(&mut random, &mut body),
            14 => owners(&mut random, &mut body),
            _ => status(&mut random, &mut body, victim),
        }
    }
    Hostile { group, resource, body }
}

/// The object of this seed, as no server sends it.
pub fn any(seed: u64, victim: &Victim<'_>) -> Hostile {
    let mut hostile = written(seed, victim);
    let mut random = Random::new(!seed);
    if random.is(4) {
        hostile.body["metadata"]["initializers"] = strange(&mut random);
    }
    for _ in 0..random.roll(6) {
        let depth = 1 + random.roll(9);
        spoil(&mut random, &mut hostile.body, depth);
    }
    hostile
}

fn annotate(of: &mut Value, key: &str, value: &str) {
    if !of["metadata"]["annotations"].is_object() {
        of["metadata"]["annotations"] = json!({});
    }
    of["metadata"]["annotations"][key] = value.into();
}

/// Annotations and labels: large ones, many, with names like ours, with control characters.
fn metadata(random: &mut Random, pod: &mut Value) {
    match random.roll(6) {
        0 => annotate(pod, "example.org/big", &"x".repeat(random.pick(&[1 << 10, 100_000, 200_000, 262_000]))),
        1 => annotate(pod, "example.org/controls", CONTROLS),
        2 => {
            let keys = [
                "injected.scpol.dev/ENVOY",
                "injected.scpol.dev/envoy.",
                "injected.scpol.dev.example.org/envoy",
                "xinjected.scpol.dev/envoy",
                "scpol.dev/inject-",
                "scpol.dev/injected",
                "envoy",
            ];
            annotate(pod, random.pick(&keys), random.pick(&["", "false", "{}", CONTROLS]));
        }
        3 => {
            for number in 0..random.pick(&[10, 500]) {
                annotate(pod, &format!("example.org/{}{number}", "n".repeat(50)), &"v".repeat(60));
            }
        }
        4 => {
            for number in 0..100 {
                pod["metadata"]["labels"][format!("l{number}.{}", "a".repeat(50))] = "v".repeat(63).into();
            }
        }
        _ => pod["metadata"]["annotations"] = random.pick(&[json!(null), json!({})]),
    }
}

/// A marker that the operator has not written.
fn marker(random: &mut Random, pod: &mut Value, victim: &Victim<'_>, at: &str) {
    let own = [
        format!("{at}/spec/containers/{}", victim.container),
        format!("{at}/spec/volumes/{}", victim.volume),
        format!("{at}/metadata/annotations/injected.scpol.dev~1{}", victim.name),
    ];
    let users = [format!("{at}/spec/containers/app"), format!("{at}/spec/containers/app/env/A"), format!("{at}/spec")];
    let odd = ["", "/", "~", "/~9", "/metadata", "spec", "/spec/containers/-1", "/spec/containers/0", CONTROLS];
    let added: Vec<String> = match random.roll(7) {
        0 => Vec::new(),
        1 => own.to_vec(),
        2 => own.iter().chain(&users).cloned().collect(),
        3 => odd.map(str::to_owned).to_vec(),
        4 => (0..5_000).map(|number| format!("{at}/spec/containers/c{number}")).collect(),
        5 => vec![format!("{at}/spec/containers/{}", "x".repeat(100_000))],
        _ => vec![own[0].clone(); 300],
    };
    let hash = random.pick(&[victim.hash, victim.hash, "0123456789abcdef", "", CONTROLS]);
    let forged = match random.roll(10) {
        0 => random.pick(&["", " ", "null", "[]", "{}", "7", "\"x\"", "garbage", "{\"v\":1", CONTROLS]).to_owned(),
        1 => "[".repeat(random.pick(&[100, 10_000])),
        2 => json!({ "v": random.pick(&[json!(2), json!(-1), json!(1e300), json!("1"), json!(null)]), "hash": hash, "added": added })
            .to_string(),
        3 => json!({ "v": 1, "hash": [hash], "added": random.pick(&[json!(7), json!({}), json!([[]]), json!([null])]) }).to_string(),
        4 => format!("{{\"v\":1,\"v\":1,\"hash\":\"{}\",\"hash\":\"\",\"added\":[],\"more\":{}}}", victim.hash, "[".repeat(60) + &"]".repeat(60)),
        _ => json!({ "v": 1, "hash": hash, "added": added }).to_string(),
    };
    annotate(pod, &format!("injected.scpol.dev/{}", random.pick(&[victim.name, victim.name, "other"])), &forged);
    if random.is(3) {
        // The container of the marker, as somebody else writes it.
        let image = random.pick(&["envoy:1", "evil:1", ""]);
        push(&mut pod["spec"]["containers"], json!({ "name": victim.container, "image": image }));
    }
}

/// The annotations that users write for the operator and for kubectl.
fn ours(random: &mut Random, pod: &mut Value) {
    let commas = ",".repeat(random.pick(&[10, 60_000]));
    let value =
        random.pick(&["true", "false", "False", "", " ", "envoy", "-envoy", "envoy,other", CONTROLS, commas.as_str()]);
    let times =
        ["9999-12-31T23:59:59Z", "9999-01-01T00:00:00Z", "-009999-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "now", ""];
    match random.roll(4) {
        0 | 1 => annotate(pod, "scpol.dev/inject", value),
        2 => annotate(pod, "scpol.dev/rollout", value),
        _ => annotate(pod, "kubectl.kubernetes.io/restartedAt", random.pick(&times)),
    }
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

/// More containers, with long names, with names like ours, twice.
fn containers(random: &mut Random, pod: &mut Value, victim: &Victim<'_>) {
    let list = random.pick(&["containers", "containers", "initContainers"]);
    match random.roll(6) {
        0 => {
            let image = random.pick(&["evil:1", "envoy:1", "ENVOY", " ", "x/y@sha256:0"]);
            push(&mut pod["spec"][list], json!({ "name": victim.container, "image": image }));
        }
        1 => {
            let name = random.pick(&["envoy-", "-envoy", "Envoy", "envoy\u{0}", "env0y", "\u{435}nvoy", ""]);
            push(&mut pod["spec"][list], json!({ "name": name, "image": "x" }));
        }
        2 => {
            for number in 0..random.pick(&[3, 40]) {
                let name = format!("{}{number}", "c".repeat(60));
                push(&mut pod["spec"][list], json!({ "name": name, "image": "x", "command": [CONTROLS], "args": [] }));
            }
        }
        3 => push(&mut pod["spec"][list], json!({ "name": "app", "image": "twice" })),
        4 => pod["spec"]["initContainers"] = random.pick(&[json!(null), json!([])]),
        _ => {
            let args: Vec<String> = (0..2_000).map(|number| format!("--{number}")).collect();
            push(&mut pod["spec"][list], json!({ "name": "many", "image": "x", "args": args }));
        }
    }
}

/// What stands in the user's containers.
fn inner(random: &mut Random, pod: &mut Value) {
    let container = &mut pod["spec"]["containers"][0];
    match random.roll(7) {
        0 => {
            container["env"] =
                (0..400).map(|number| json!({ "name": format!("E{number}"), "value": "$(E1)$$" })).collect();
        }
        1 => container["env"] = json!([{ "name": "A", "value": "mine" }, { "name": "A", "value": CONTROLS }]),
        2 => container["env"] = json!([{ "name": random.pick(&["", "=", "A B", CONTROLS]), "value": "x" }]),
        3 => {
            let ports = [json!(0), json!(-1), json!(1), json!(65535), json!(65536), json!(i64::MAX), json!(1.5)];
            let (port, host) = (random.pick(&ports), random.pick(&ports));
            container["ports"] =
                json!([{ "containerPort": port, "hostPort": host }, { "containerPort": 80, "name": "x" }]);
        }
        4 => container["ports"] = json!([{ "containerPort": 80 }, { "containerPort": 80 }]),
        5 => {
            container["volumeMounts"] =
                json!([{ "name": "none", "mountPath": random.pick(&["/m", "/m/", "", ":", CONTROLS]) }])
        }
        _ => {
            container["securityContext"] =
                json!({ "runAsUser": random.pick(&[0, -1, i64::MAX]), "privileged": random.is(2) });
            container["livenessProbe"] =
                json!({ "exec": { "command": ["x"] }, "periodSeconds": random.pick(&[0, -1, i64::from(i32::MAX)]) });
        }
    }
}

fn volumes(random: &mut Random, pod: &mut Value, victim: &Victim<'_>) {
    match random.roll(5) {
        0 => {
            pod["spec"]["volumes"] =
                (0..200).map(|number| json!({ "name": format!("v{number}"), "emptyDir": {} })).collect()
        }
        1 => push(&mut pod["spec"]["volumes"], json!({ "name": victim.volume, "configMap": { "name": "mine" } })),
        2 => push(&mut pod["spec"]["volumes"], json!({ "name": victim.volume, "emptyDir": {} })),
        3 => pod["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }, { "name": "v", "emptyDir": {} }]),
        _ => pod["spec"]["volumes"] = random.pick(&[json!(null), json!([])]),
    }
}

const INTEGERS: [i64; 8] = [i64::MIN, -1, 0, 1, 86_401, i32::MAX as i64, 1 << 40, i64::MAX];

fn numbers_of_pod(random: &mut Random, pod: &mut Value) {
    let field = random.pick(&[
        "terminationGracePeriodSeconds",
        "terminationGracePeriodSeconds",
        "terminationGracePeriodSeconds",
        "activeDeadlineSeconds",
        "priority",
    ]);
    pod["spec"][field] = random.pick(&INTEGERS).into();
}

/// Quantities that nobody has.
fn amounts(random: &mut Random, pod: &mut Value) {
    let amounts = [
        "0",
        "1n",
        "0.0000000001",
        "-1",
        "9e18",
        "1E",
        "1e29",
        "99999999999999999999999999999999999999",
        "1Ei",
        "1e-400",
        "x",
        "",
    ];
    let resources =
        json!({ random.pick(&["requests", "limits"]): { random.pick(&["cpu", "memory"]): random.pick(&amounts) } });
    let containers = pod["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        container["resources"] = resources.clone();
    }
}

/// What keeps a sidecar out, or pretends to.
fn ways_out(random: &mut Random, pod: &mut Value) {
    match random.roll(7) {
        0 => pod["spec"]["hostNetwork"] = true.into(),
        1 => pod["spec"]["hostPID"] = true.into(),
        2 => pod["spec"]["restartPolicy"] = random.pick(&["Never", "OnFailure", "Always"]).into(),
        3 => annotate(pod, "kubernetes.io/config.source", "file"),
        4 => annotate(pod, "kubernetes.io/config.mirror", "x"),
        5 => pod["spec"]["os"] = json!({ "name": random.pick(&["windows", "linux"]) }),
        _ => pod["spec"]["nodeName"] = "nowhere".into(),
    }
}

fn numbers_of_owner(random: &mut Random, body: &mut Value) {
    let fields = [
        "replicas",
        "minReadySeconds",
        "progressDeadlineSeconds",
        "revisionHistoryLimit",
        "parallelism",
        "completions",
        "backoffLimit",
    ];
    body["spec"][random.pick(&fields)] = random.pick(&INTEGERS).into();
    if body["kind"] == "StatefulSet" && random.is(2) {
        body["spec"]["updateStrategy"] =
            json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": random.pick(&INTEGERS) } });
    }
    if body["kind"] == "StatefulSet" && random.is(2) {
        body["spec"]["volumeClaimTemplates"] = random.pick(&[json!([]), json!(null)]);
    }
}

/// What only the server writes, written by the client.
fn identity(random: &mut Random, body: &mut Value) {
    let metadata = &mut body["metadata"];
    match random.roll(8) {
        0 => metadata["generation"] = random.pick(&INTEGERS).into(),
        1 => metadata["creationTimestamp"] = random.pick(&["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"]).into(),
        2 => metadata["deletionTimestamp"] = "2020-01-01T00:00:00Z".into(),
        3 => metadata["uid"] = random.pick(&["u", "", CONTROLS]).into(),
        4 => metadata["resourceVersion"] = random.pick(&["18446744073709551615", "x", ""]).into(),
        5 => metadata["finalizers"] = json!(["example.org/x"]),
        6 => metadata["name"] = format!("{}{}", metadata["name"].as_str().unwrap_or("h"), "n".repeat(240)).into(),
        _ => metadata["managedFields"] = json!([{ "manager": "x", "operation": "Apply", "fieldsType": "FieldsV1" }]),
    }
}

fn owners(random: &mut Random, body: &mut Value) {
    let owner = |random: &mut Random| {
        json!({
            "apiVersion": random.pick(&["apps/v1", "v1", "batch/v1", "example.org/v1"]),
            "kind": random.pick(&["ReplicaSet", "StatefulSet", "Node", "Job", "Thing"]),
            "name": random.pick(&["x", "x-6d4b"]), "uid": random.pick(&["u", "00000000-0000-0000-0000-000000000000"]),
            "controller": random.is(2), "blockOwnerDeletion": random.is(2),
        })
    };
    let owners: Vec<Value> = (0..1 + random.roll(3)).map(|_| owner(random)).collect();
    body["metadata"]["ownerReferences"] = owners.into();
}

/// A status as a controller or a kubelet writes it. Most servers drop it on a create.
fn status(random: &mut Random, body: &mut Value, victim: &Victim<'_>) {
    let mut number = || Value::from(random.pick(&INTEGERS));
    let statuses = json!([
        { "name": victim.container, "image": "other:1", "restartCount": number(), "state": { "waiting": { "reason": CONTROLS } } },
        { "name": victim.container, "restartCount": number() },
        { "name": "app", "restartCount": number() },
    ]);
    body["status"] = json!({
        "observedGeneration": number(), "replicas": number(), "updatedReplicas": number(), "readyReplicas": number(),
        "availableReplicas": number(), "desiredNumberScheduled": number(), "updatedNumberScheduled": number(),
        "numberAvailable": number(), "numberReady": number(), "active": number(), "ready": number(),
        "containerStatuses": statuses, "initContainerStatuses": statuses,
    });
    let time = random.pick(&["9999-12-30T00:00:00Z", "0001-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "soon"]);
    body["status"]["conditions"] = json!([{ "type": random.pick(&["Ready", "Available"]), "status": random.pick(&["True", "x"]), "lastTransitionTime": time }]);
    body["status"]["phase"] = random.pick(&["Running", "Succeeded", ""]).into();
}

/// A value that nobody expects.
fn strange(random: &mut Random) -> Value {
    match random.roll(14) {
        0 => Value::Null,
        1 => json!([]),
        2 => json!({}),
        3 => json!(random.is(2)),
        4 => json!(random.pick(&INTEGERS)),
        5 => json!(u64::MAX),
        6 => json!(random.pick(&[1e300, -0.0, 0.5, f64::MIN_POSITIVE])),
        7 => json!(CONTROLS),
        8 => json!("x".repeat(random.pick(&[0, 1, 256 * 1024]))),
        9 => (0..random.pick(&[20, 90])).fold(json!(1), |inner, _| json!([inner])),
        10 => (0..random.pick(&[20, 90])).fold(json!(1), |inner, _| json!({ "spec": inner })),
        11 => json!([null, [], {}, 7, "x", { "name": null }, { "name": 7 }, { "name": "" }, { "name": "app" }]),
        12 => json!({ "name": "app", "image": 7, "env": {}, "ports": "x" }),
        _ => (0..300).map(|number| (format!("k{number}"), json!(number))).collect::<Map<_, _>>().into(),
    }
}

/// Replaces, removes or doubles something within `value`, at most `depth` levels below.
fn spoil(random: &mut Random, value: &mut Value, depth: usize) {
    let is_leaf = !value.is_object() && !value.is_array();
    if depth == 0 || is_leaf || random.is(12) {
        *value = strange(random);
        return;
    }
    match value {
        Value::Object(members) => {
            let keys: Vec<String> = members.keys().cloned().collect();
            if keys.is_empty() {
                members.insert("name".into(), strange(random));
                return;
            }
            let key = random.pick(&keys);
            if random.is(20) {
                members.remove(&key);
            } else if let Some(member) = members.get_mut(&key) {
                spoil(random, member, depth - 1);
            }
        }
        Value::Array(items) => {
            if items.is_empty() || random.is(6) {
                items.push(strange(random));
                return;
            }
            let index = random.roll(items.len());
            if random.is(6) {
                items.push(items[index].clone());
            } else {
                spoil(random, &mut items[index], depth - 1);
            }
        }
        _ => {}
    }
}

/// `value`, of which a few parts are spoilt. The same seed spoils the same.
pub fn spoiled(seed: u64, mut value: Value) -> Value {
    let mut random = Random::new(seed);
    for _ in 0..1 + random.roll(3) {
        let depth = 1 + random.roll(7);
        spoil(&mut random, &mut value, depth);
    }
    value
}
