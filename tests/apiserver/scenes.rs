//! Random policies and workloads whose names, ports and keys often coincide, with equal or different content.

#![allow(unreachable_pub, reason = "shared between test programs")]

use fastrand::Rng;
use serde_json::{Value, json};

/// Whether the content must have the types of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Mostly accepted by a server.
    Valid,
    /// Any value in any place, as in a custom resource.
    Strange,
}

const NAMES: [&str; 5] = ["app", "web", "proxy", "p0", "p1"];

/// The optional fields of a template: the field, its values, and n if one template in n has it.
fn parts(volume: &str) -> [(&'static str, Vec<Value>, usize); 7] {
    [
        (
            "metadata",
            vec![
                json!({"labels": {"app": "web", "mesh": "on"}}),
                json!({"labels": {"mesh": "off"}}),
                json!({"annotations": {"a/b": "1", "own/c_d": ""}}),
            ],
            3,
        ),
        (
            "env",
            vec![
                json!([{"name": "A", "value": "1"}]),
                json!([{"name": "A", "value": ""}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            ],
            3,
        ),
        ("envFrom", vec![json!([{"configMapRef": {"name": "c"}}, {"prefix": "P_", "secretRef": {"name": "s"}}])], 5),
        (
            "volumeMounts",
            vec![json!([{"name": volume, "mountPath": "/m"}]), json!([{"name": volume, "mountPath": "/d/"}])],
            5,
        ),
        ("imagePullSecrets", vec![json!([{"name": "registry"}]), json!([{"name": "r2"}, {"name": "registry"}])], 5),
        ("appContainers", vec![json!(["app"]), json!(["w*", "?pp"])], 4),
        ("includeInitContainers", vec![json!(true)], 4),
    ]
}

/// Makes scenes of one kind of content.
pub struct Scenes {
    rng: Rng,
    content: Content,
}

impl Scenes {
    /// A generator. The same seed gives the same scenes.
    pub fn new(seed: u64, content: Content) -> Self {
        Self { rng: Rng::with_seed(seed), content }
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.rng.usize(..sides) == 0
    }

    fn pick(&mut self, choices: &[Value]) -> Value {
        self.rng.choice(choices).cloned().unwrap_or_default()
    }

    /// At most `most` of `names`, without repetition.
    fn some(&mut self, names: &[&str], most: usize) -> Vec<String> {
        let mut left: Vec<&str> = names.to_vec();
        self.rng.shuffle(&mut left);
        let count = self.rng.usize(..=most);
        left.into_iter().take(count).map(str::to_owned).collect()
    }

    /// `value`, or in one of twenty cases a strange value instead.
    fn or_strange(&mut self, value: Value) -> Value {
        if self.content == Content::Valid || !self.one_in(20) {
            return value;
        }
        self.pick(&[
            json!(null),
            json!("text"),
            json!(7),
            json!([]),
            json!({}),
            json!([null, 7, {"name": "app"}]),
            json!(false),
        ])
    }

    /// The policies of a scene: the `spec`s, by name.
    pub fn policies(&mut self, targets: &Value) -> Vec<(String, Value)> {
        let count = 1 + self.rng.usize(..4);
        (0..count).map(|index| (format!("p{index}"), self.policy(index, targets))).collect()
    }

    fn policy(&mut self, index: usize, targets: &Value) -> Value {
        let mut spec = json!({ "targets": targets, "template": self.template(index), "priority": self.rng.i32(-1..2) });
        for (field, values, sides) in [
            (
                "position",
                vec![
                    json!({"containers": "Before"}),
                    json!({"containers": "Before", "initContainers": "Before"}),
                    json!({"env": "After", "envFrom": "After", "volumeMounts": "Before"}),
                    json!({"containers": "Before", "env": "Before"}),
                ],
                2,
            ),
            ("nativeSidecars", vec![json!("Always"), json!("Never")], 4),
            ("hostNetworkPods", vec![json!("Inject")], 2),
            ("optOut", vec![json!("Denied")], 4),
            (
                "annotationSelector",
                vec![json!({"matchExpressions": [{"key": "a/b", "operator": "NotIn", "values": ["2"]}]})],
                4,
            ),
            (
                "labelSelector",
                vec![
                    json!({"matchLabels": {"app": "web"}}),
                    json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}, {"key": "app", "operator": "In", "values": ["web", "x"]}]}),
                ],
                4,
            ),
            ("namespaces", vec![json!(["de*t", "other"]), json!(["?efault"])], 6),
            ("namespaceSelector", vec![json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}})], 6),
            (
                "matchConditions",
                vec![
                    json!([{"name": "fails", "expression": "object.spec.nowhere == 1"}]),
                    json!([{"name": "holds", "expression": "object.metadata.labels.app == 'web' && !has(object.status)"}]),
                    json!([{"name": "name", "expression": "object.metadata.name.startsWith('w')"}]),
                ],
                4,
            ),
        ] {
            if self.one_in(sides) {
                spec[field] = self.pick(&values);
            }
        }
        spec
    }

    fn template(&mut self, index: usize) -> Value {
        let own = [format!("p{index}"), format!("p{index}-y")];
        let names = [own[0].as_str(), own[1].as_str(), own[0].as_str(), "proxy", "app"];
        let named = |scenes: &mut Self, most| {
            let mut names = scenes.some(&names, most);
            names.sort();
            names.dedup();
            names
        };
        let volumes = named(self, 2);
        let containers = named(self, 2);
        let inits: Vec<String> = named(self, 2).into_iter().filter(|name| !containers.contains(name)).collect();
        let mut template = json!({});
        let lists = [("containers", containers), ("initContainers", inits)];
        for (field, names) in lists {
            if !names.is_empty() {
                template[field] =
                    names.iter().map(|name| self.container(name, volumes.first(), Content::Valid)).collect();
            }
        }
        if !volumes.is_empty() {
            template["volumes"] = volumes.iter().map(|name| self.volume(name)).collect();
        }
        let volume = volumes.first().map_or("app", String::as_str);
        for (field, values, sides) in parts(volume) {
            if self.one_in(sides) {
                template[field] = self.pick(&values);
            }
        }
        // The other fields only set positions.
        let adds = [
            "containers",
            "initContainers",
            "volumes",
            "metadata",
            "env",
            "envFrom",
            "volumeMounts",
            "imagePullSecrets",
        ];
        if adds.iter().all(|field| template.get(field).is_none()) {
            template["metadata"] = json!({"labels": {"mesh": "on"}});
        }
        template
    }

    fn container(&mut self, name: &str, volume: Option<&String>, content: Content) -> Value {
        let mount = volume.map_or("app", String::as_str);
        let port = 80 + self.rng.u32(..2);
        let mut container = self.pick(&[
            json!({"image": "a"}),
            json!({"image": "a"}),
            json!({"image": "a"}),
            json!({"image": "b"}),
            json!({"image": "a", "tty": false, "args": [], "workingDir": ""}),
            json!({"image": "a", "args": ["x", "$(Y)"], "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "timeoutSeconds": 0}}),
            json!({"image": "a", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}),
            json!({"image": "a", "resources": {"limits": {"memory": "1024Mi", "cpu": "0.5"}}}),
            json!({"image": "a", "resources": {"limits": {"cpu": 2}}}),
            json!({"image": "a", "env": [{"name": "A", "value": ""}, {"name": "B", "value": "b"}]}),
            json!({"image": "a", "env": [{"name": "B", "value": "b"}, {"name": "A"}]}),
            json!({"image": "a", "env": [{"name": "A", "value": "1"}]}),
            json!({"image": "a", "env": [{"name": "A", "value": "2"}, {"name": "A", "value": "1"}]}),
            json!({"image": "a", "envFrom": [{"configMapRef": {"name": "c"}}]}),
            json!({"image": "a", "ports": [{"containerPort": 80, "hostPort": port}]}),
            json!({"image": "a", "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}]}),
            json!({"image": "a", "ports": [{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80}]}),
            json!({"image": "a", "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]}),
            json!({"image": "a", "volumeMounts": [{"name": mount, "mountPath": "/d", "readOnly": false}]}),
            json!({"image": "a", "volumeMounts": [{"name": mount, "mountPath": "/m"}, {"name": mount, "mountPath": "/d/"}]}),
        ]);
        container["name"] = json!(name);
        if content == Content::Strange {
            for field in ["env", "ports", "name", "resources", "image", "volumeMounts", "envFrom"] {
                if let Some(value) = container.get(field).cloned() {
                    container[field] = self.or_strange(value);
                }
            }
        }
        container
    }

    fn volume(&mut self, name: &str) -> Value {
        let mut volume = self.pick(&[
            json!({"emptyDir": {}}),
            json!({"emptyDir": {}}),
            json!({}),
            json!({"emptyDir": {"sizeLimit": "1Gi"}}),
            json!({"emptyDir": {"sizeLimit": "1073741824"}}),
            json!({"configMap": {"name": "c"}}),
        ]);
        volume["name"] = json!(name);
        volume
    }

    fn metadata(&mut self) -> Value {
        let mut metadata = json!({ "labels": { "app": "web" } });
        if self.one_in(2) {
            metadata["annotations"] = self.pick(&[
                json!({"a/b": "1"}),
                json!({"a/b": "2", "scpol.dev/inject": "p0, p2"}),
                json!({"scpol.dev/inject": "true"}),
                json!({"scpol.dev/inject": " , "}),
                json!({"injected.scpol.dev/p0": "{\"v\":1,\"hash\":\"0123456789abcdef\",\"added\":[\"/spec/containers/app\",\"/spec/template/spec/containers/app\"]}"}),
                json!({"injected.scpol.dev/x": "{\"v\":1,\"hash\":\"0123456789abcdef\",\"added\":[\"/spec/initContainers/web\",\"/spec/template/spec/containers/web\"],\"nulls\":[\"/spec/containers/app\"]}"}),
                json!({"injected.scpol.dev/p1": "garbage", "injected.scpol.dev/y": "{\"v\":1,\"hash\":\"x\",\"added\":[]}"}),
            ]);
        }
        if self.one_in(4) {
            metadata["labels"]["mesh"] = json!("on");
        }
        metadata
    }

    /// The `metadata` and `spec` of a pod.
    pub fn pod(&mut self) -> Value {
        let content = self.content;
        let mut names = self.some(&NAMES, 4);
        if content == Content::Valid && names.is_empty() {
            names.push("app".to_owned());
        }
        let apps = if names.is_empty() { 0 } else { 1 + self.rng.usize(..names.len()) };
        let inits = names.split_off(apps);
        let mut volumes = self.some(&NAMES, 3);
        if content == Content::Valid && !volumes.contains(&"app".to_owned()) {
            volumes.push("app".to_owned());
        }
        let mut spec = json!({ "restartPolicy": "Always" });
        let list = |scenes: &mut Self, names: &[String]| -> Value {
            names.iter().map(|name| scenes.container(name, None, content)).collect()
        };
        spec["containers"] = list(self, &names);
        if !inits.is_empty() {
            spec["initContainers"] = list(self, &inits);
        }
        if self.one_in(5) && !inits.is_empty() {
            spec["initContainers"][0]["restartPolicy"] = json!("Always");
        }
        spec["volumes"] = volumes.iter().map(|name| self.volume(name)).collect();
        if self.one_in(5) {
            spec["hostNetwork"] = json!(true);
        }
        if self.one_in(5) {
            spec["imagePullSecrets"] = json!([{"name": "registry"}]);
        }
        let mut metadata = self.metadata();
        if content == Content::Strange {
            for field in ["containers", "initContainers", "volumes", "imagePullSecrets", "restartPolicy", "hostNetwork"]
            {
                if let Some(value) = spec.get(field).cloned() {
                    spec[field] = self.or_strange(value);
                }
            }
            for field in ["labels", "annotations"] {
                if let Some(value) = metadata.get(field).cloned() {
                    metadata[field] = self.or_strange(value);
                }
            }
        }
        let mut pod = json!({});
        pod["spec"] = self.or_strange(spec);
        pod["metadata"] = self.or_strange(metadata);
        if content == Content::Strange && self.one_in(8) {
            pod.as_object_mut().expect("a map").remove("metadata");
        }
        pod
    }
}
