use super::*;

/// The faults of a template with the container `a`, which has `fields` besides its image, as `path: message`.
fn of_container(fields: &str, minor: Option<u32>) -> Vec<String> {
    of_template(&format!("containers: [{{name: a, image: a, {fields}}}]"), minor)
}

fn of_template(template: &str, minor: Option<u32>) -> Vec<String> {
    let template: Value = serde_saphyr::from_str(template).unwrap_or_else(|error| panic!("{template}: {error}"));
    let told = in_template(&template, minor).into_iter().map(|fault| {
        let field = fault.field.replace("spec.template.", "").replace("containers[0].", "");
        format!("{} {field}: {}", fault.code, fault.message)
    });
    told.collect()
}

/// Fields of a container, with the fault.
const CONTAINER_FAULTS: &[(&str, &str)] = &[
    ("imagePullpolicy: Always", "SCP0026 imagePullpolicy: there is no such field; did you mean `imagePullPolicy`?"),
    ("livenesProbe: {}", "SCP0026 livenesProbe: there is no such field; did you mean `livenessProbe`?"),
    ("volumemounts: []", "SCP0026 volumemounts: there is no such field; did you mean `volumeMounts`?"),
    ("quantum: 1", "SCP0026 quantum: there is no such field in a Container of Kubernetes up to 1.37; remove it"),
    ("command: sleep 1000", r#"SCP0022 command: must be a list of strings, is a string; write `["sleep","1000"]`"#),
    (
        "command: 'sleep 1 && date'",
        r#"SCP0022 command: must be a list of strings, is a string; write `["sh","-c","sleep 1 && date"]`"#,
    ),
    ("args: [1]", "SCP0022 args[0]: must be a string, is a number; write `\"1\"`"),
    ("args: [null]", "SCP0022 args[0]: must be a string, is null"),
    (
        "resources: {requests: {memory: 1gb}}",
        "SCP0022 resources.requests.memory: must be a quantity, not `1gb`; write e.g. `1Gi`",
    ),
    (
        "resources: {requests: {memory: lots}}",
        "SCP0022 resources.requests.memory: must be a quantity, not `lots`; write e.g. `500m` or `128Mi`",
    ),
    (
        "resources: {requests: {mem: 1Gi}}",
        "SCP0022 resources.requests.mem: there is no such resource for a container; others have a domain, as in \
         `example.com/gpu`; did you mean `memory`?",
    ),
    (
        "resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}",
        "SCP0022 resources.requests.cpu: must be at most the limit, `1500m`, is `2`",
    ),
    ("resources: {limits: {cpu: -1}}", "SCP0022 resources.limits.cpu: must not be negative"),
    (
        "resources: {limits: {example.com/gpu: 500m}}",
        "SCP0022 resources.limits.example.com/gpu: must be a whole number, is `500m`",
    ),
    (
        "resources: {requests: {example.com/gpu: 1}}",
        "SCP0022 resources.limits.example.com/gpu: must be given, as `requests.example.com/gpu` is",
    ),
    ("ports: [{containerPort: 70000}]", "SCP0022 ports[0].containerPort: must be between 1 and 65535, is 70000"),
    ("ports: [{containerPort: 0}]", "SCP0022 ports[0].containerPort: must be between 1 and 65535, is 0"),
    ("ports: [{name: http}]", "SCP0022 ports[0].containerPort: must be given; e.g. `8080`"),
    ("ports: [{containerPort: 80, hostPort: -1}]", "SCP0022 ports[0].hostPort: must be between 0 and 65535, is -1"),
    (
        "ports: [{containerPort: '80'}]",
        "SCP0022 ports[0].containerPort: must be a whole number of 32 bits, is a string; write `80`",
    ),
    (
        "ports: [{containerPort: 80, name: a-name-too-long-}]",
        "SCP0022 ports[0].name: must have at most 15 characters, not `a-name-too-long-`",
    ),
    (
        "ports: [{containerPort: 80, name: '80'}]",
        "SCP0022 ports[0].name: must have a letter; a number is written without quotes, not `80`",
    ),
    (
        "ports: [{containerPort: 80, protocol: tcp}]",
        "SCP0022 ports[0].protocol: must be one of `SCTP`, `TCP`, `UDP`, not `tcp`; did you mean `TCP`?",
    ),
    (
        "ports: [{containerPort: 80, name: a}, {containerPort: 81, name: a}]",
        "SCP0019 ports[1].name: must be unique in the container: `a` is there before",
    ),
    (
        "imagePullPolicy: always",
        "SCP0022 imagePullPolicy: must be one of `Always`, `IfNotPresent`, `Never`, not `always`; did you mean `Always`?",
    ),
    ("stdin: 'yes'", "SCP0022 stdin: must be `true` or `false`, is a string; write `true`"),
    ("env: [{name: A, value: 8080}]", "SCP0022 env[0].value: must be a string, is a number; write `\"8080\"`"),
    ("env: [{name: A, value: true}]", "SCP0022 env[0].value: must be a string, is a boolean; write `\"true\"`"),
    ("env: [{value: a}]", "SCP0022 env[0].name: must be given"),
    (
        "env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
        "SCP0022 env[0]: must have either `value` or `valueFrom`",
    ),
    (
        "env: [{name: A, valueFrom: {}}]",
        "SCP0022 env[0].valueFrom: must have one of `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef`, `fileKeyRef`",
    ),
    (
        "env: [{name: A, valueFrom: {resourceFieldRef: {resource: cpu}}}]",
        "SCP0022 env[0].valueFrom.resourceFieldRef.resource: must be one of `limits.cpu`, `limits.memory`, \
         `limits.ephemeral-storage`, `requests.cpu`, `requests.memory`, `requests.ephemeral-storage`, not `cpu`",
    ),
    (
        "env: [{name: A, valueFrom: {secretKeyRef: {name: s}}}]",
        "SCP0022 env[0].valueFrom.secretKeyRef.key: must be given",
    ),
    (
        "envFrom: [{configMapRef: {name: a}, secretRef: {name: b}}]",
        "SCP0022 envFrom[0]: must have only one of `configMapRef`, `secretRef`",
    ),
    ("volumeMounts: [{name: a}]", "SCP0022 volumeMounts[0].mountPath: must be given"),
    (
        "volumeMounts: [{name: a, mountPath: /a, subPath: /b}]",
        "SCP0022 volumeMounts[0].subPath: must be a relative path without the step `..`, not `/b`",
    ),
    (
        "volumeMounts: [{name: a, mountPath: /a, subPath: ../b}]",
        "SCP0022 volumeMounts[0].subPath: must be a relative path without the step `..`, not `../b`",
    ),
    (
        "volumeMounts: [{name: a, mountPath: /a, subPath: b, subPathExpr: c}]",
        "SCP0022 volumeMounts[0].subPathExpr: must be left out beside `subPath`",
    ),
    (
        "volumeMounts: [{name: a, mountPath: /a, mountPropagation: none}]",
        "SCP0022 volumeMounts[0].mountPropagation: must be one of `Bidirectional`, `HostToContainer`, `None`, not `none`; \
         did you mean `None`?",
    ),
    (
        "volumeMounts: [{name: a, mountPath: /a, recursiveReadOnly: Enabled}]",
        "SCP0022 volumeMounts[0].recursiveReadOnly: needs `readOnly: true`",
    ),
    (
        "livenessProbe: {periodSeconds: 5}",
        "SCP0022 livenessProbe: must have one of `exec`, `httpGet`, `tcpSocket`, `grpc`",
    ),
    (
        "livenessProbe: {tcpSocket: {port: 1}, exec: {command: [a]}}",
        "SCP0022 livenessProbe: must have only one of `exec`, `tcpSocket`",
    ),
    ("livenessProbe: {exec: {}}", "SCP0022 livenessProbe.exec.command: must be given; e.g. `[cat, /tmp/healthy]`"),
    (
        "livenessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}",
        "SCP0022 livenessProbe.periodSeconds: must be 0 or more, is -1",
    ),
    (
        "livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}",
        "SCP0022 livenessProbe.successThreshold: must be 1, is 2",
    ),
    (
        "readinessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 2}",
        "SCP0022 readinessProbe.terminationGracePeriodSeconds: must not be set for a readiness probe",
    ),
    ("readinessProbe: {httpGet: {port: 0}}", "SCP0022 readinessProbe.httpGet.port: must be between 1 and 65535, is 0"),
    (
        "readinessProbe: {httpGet: {port: '8080'}}",
        "SCP0022 readinessProbe.httpGet.port: must have a letter; a number is written without quotes, not `8080`",
    ),
    (
        "readinessProbe: {httpGet: {port: 80, scheme: https}}",
        "SCP0022 readinessProbe.httpGet.scheme: must be one of `HTTP`, `HTTPS`, not `https`; did you mean `HTTPS`?",
    ),
    ("lifecycle: {preStop: {}}", "SCP0022 lifecycle.preStop: must have one of `exec`, `httpGet`, `sleep`, `tcpSocket`"),
    ("securityContext: {runAsUser: -1}", "SCP0022 securityContext.runAsUser: must be between 0 and 2147483647, is -1"),
    (
        "securityContext: {runAsNonRoot: 'true'}",
        "SCP0022 securityContext.runAsNonRoot: must be `true` or `false`, is a string; write `true`",
    ),
    (
        "securityContext: {seccompProfile: {type: Localhost}}",
        "SCP0022 securityContext.seccompProfile.localhostProfile: must be given, as `type` is `Localhost`",
    ),
    (
        "securityContext: {privileged: true, allowPrivilegeEscalation: false}",
        "SCP0022 securityContext.allowPrivilegeEscalation: must not be `false` beside `privileged: true`",
    ),
    (
        "restartPolicy: Sometimes",
        "SCP0022 restartPolicy: must be one of `Always`, `OnFailure`, `Never`, not `Sometimes`",
    ),
    ("securityContext: [a]", "SCP0022 securityContext: must be an object, is a list"),
    (
        "env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 3m}}}]",
        "SCP0022 env[0].valueFrom.resourceFieldRef.divisor: must be `1m` or `1`, not `3m`",
    ),
    (
        "env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 2Mi}}}]",
        "SCP0022 env[0].valueFrom.resourceFieldRef.divisor: must be `1` or one unit, such as `1k`, `1Mi` or `1Gi`, not `2Mi`",
    ),
    (
        "env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: a/b}}}]",
        "SCP0022 env[0].valueFrom.configMapKeyRef.key: must be at most 253 letters, digits, `-`, `_` and `.`, and no step up, not `a/b`",
    ),
    (
        "livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: X Y, value: a}]}}",
        "SCP0022 livenessProbe.httpGet.httpHeaders[0].name: must be letters, digits and `-`, not `X Y`",
    ),
    ("lifecycle: {preStop: {sleep: {seconds: -1}}}", "SCP0022 lifecycle.preStop.sleep.seconds: must be 0 or more"),
    ("resources: {limits: {hugepages-2Mi: 2Mi}}", "SCP0022 resources: must have `cpu` or `memory` beside huge pages"),
    (
        "resources: {limits: {hugepages-2Mi: 3Mi, memory: 1Mi}}",
        "SCP0022 resources.limits.hugepages-2Mi: must be a multiple of the size of a page, is `3Mi`",
    ),
    (
        "securityContext: {seccompProfile: {type: Localhost, localhostProfile: /a}}",
        "SCP0022 securityContext.seccompProfile.localhostProfile: must be a relative path without the step `..`, not `/a`",
    ),
    (
        "securityContext: {windowsOptions: {gmsaCredentialSpecName: A_B}}",
        "SCP0022 securityContext.windowsOptions.gmsaCredentialSpecName: must be a name of an object: at most 253 lower-case \
         letters, digits, `-` and `.`, not `A_B`",
    ),
    (
        "resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: NotRequired}]",
        "SCP0019 resizePolicy[1].resourceName: must be unique in the list: `cpu` is there before",
    ),
    (
        "resizePolicy: [{resourceName: ephemeral-storage, restartPolicy: NotRequired}]",
        "SCP0022 resizePolicy[0].resourceName: must be one of `cpu`, `memory`, not `ephemeral-storage`",
    ),
    (
        "restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]",
        "SCP0022 restartPolicy: must be given, as `restartPolicyRules` is",
    ),
    (
        "restartPolicy: Never, restartPolicyRules: [{action: Stop, exitCodes: {operator: In, values: [1]}}]",
        "SCP0022 restartPolicyRules[0].action: must be one of `Restart`, `RestartAllContainers`, not `Stop`",
    ),
    (
        "ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]",
        "SCP0019 ports[1].hostPort: must be unique in the container: `80` is there before",
    ),
];

#[test]
fn the_fields_of_a_container_are_spelt_typed_and_bounded_as_a_server_has_them() {
    for &(fields, expected) in CONTAINER_FAULTS {
        assert_eq!(of_container(fields, None), [expected], "{fields}");
    }
}

/// Templates, with the fault.
const TEMPLATE_FAULTS: &[(&str, &str)] = &[
    (
        "volumes: [{name: a, emptyDir: {}, configMap: {name: a}}]",
        "SCP0022 volumes[0]: must have one source, has `configMap`, `emptyDir`",
    ),
    (
        "volumes: [{name: a, emptydir: {}}]",
        "SCP0026 volumes[0].emptydir: there is no such field; did you mean `emptyDir`?",
    ),
    (
        "volumes: [{name: A}]",
        "SCP0022 volumes[0].name: must be at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends, not `A`",
    ),
    (
        "volumes: [{name: a, secret: {secretname: b}}]",
        "SCP0026 volumes[0].secret.secretname: there is no such field; did you mean `secretName`?",
    ),
    (
        "volumes: [{name: a, configMap: {name: b, defaultMode: 644}}]",
        "SCP0022 volumes[0].configMap.defaultMode: must be between 0 and 0777 (in JSON, and quoted nowhere: 0 to 511), is 644",
    ),
    (
        "volumes: [{name: a, emptyDir: {sizeLimit: 1gb}}]",
        "SCP0022 volumes[0].emptyDir.sizeLimit: must be a quantity, not `1gb`; write e.g. `1Gi`",
    ),
    (
        "volumes: [{name: a, emptyDir: {medium: memory}}]",
        "SCP0022 volumes[0].emptyDir.medium: must be one of `Memory`, `HugePages`, not `memory`; did you mean `Memory`?",
    ),
    (
        "volumes: [{name: a, hostPath: {path: /a/../b}}]",
        "SCP0022 volumes[0].hostPath.path: must be a path without the step `..`, not `/a/../b`",
    ),
    (
        "volumes: [{name: a, hostPath: {path: /a, type: directory}}]",
        "SCP0022 volumes[0].hostPath.type: must be one of `BlockDevice`, `CharDevice`, `Directory`, `DirectoryOrCreate`, `File`, `FileOrCreate`, `Socket`, not `directory`; did you mean `Directory`?",
    ),
    (
        "volumes: [{name: a, projected: {sources: [{configMap: {name: a}, secret: {name: b}}]}}]",
        "SCP0022 volumes[0].projected.sources[0]: must have one source, has `configMap`, `secret`",
    ),
    (
        "volumes: [{name: a, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: spec.nodeName}}]}}]",
        "SCP0022 volumes[0].downwardAPI.items[0].fieldRef.fieldPath: must be one of `metadata.name`, `metadata.namespace`, `metadata.labels`, `metadata.annotations`, `metadata.uid`, `metadata.labels['KEY']`, `metadata.annotations['KEY']`, not `spec.nodeName`",
    ),
    (
        "imagePullSecrets: [{name: ''}, {nam: a}]",
        "SCP0026 imagePullSecrets[1].nam: there is no such field; did you mean `name`?",
    ),
    ("env: [{name: A, value: 1}]", "SCP0022 env[0].value: must be a string, is a number; write `\"1\"`"),
    ("env: [{name: A, valeu: b}]", "SCP0026 env[0].valeu: there is no such field; did you mean `value`?"),
    (
        "volumeMounts: [{name: a, mountPath: /a, readonly: true}]",
        "SCP0026 volumeMounts[0].readonly: there is no such field; did you mean `readOnly`?",
    ),
    (
        "metadata: {labels: {a: 'b c'}}",
        "SCP0022 metadata.labels.a: must be at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends, not `b c`",
    ),
    (
        "initContainers: [{name: a, image: a, livenessProbe: {tcpSocket: {port: 1}}}]",
        "SCP0022 initContainers[0].livenessProbe: must not be set for an init container, unless it has `restartPolicy: Always`",
    ),
    ("containers: [{name: a}]", "SCP0022 image: must be given; e.g. `registry.example.com/agent:1.2.3`"),
    (
        "containers: [{name: a, image: ' nginx:1'}]",
        "SCP0022 image: must be without blanks at both ends, not ` nginx:1`",
    ),
    ("volumes: [{name: v, configMap: {}}]", "SCP0022 volumes[0].configMap.name: must be given"),
    (
        "volumes: [{name: v, configMap: {name: a, items: [{key: a, path: ..a}]}}]",
        "SCP0022 volumes[0].configMap.items[0].path: must be a relative path without the step `..`, which does not begin with \
         `..`, not `..a`",
    ),
    (
        "volumes: [{name: v, nfs: {server: a, path: a}}]",
        "SCP0022 volumes[0].nfs.path: must be an absolute path, not `a`",
    ),
    (
        "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {resources: {requests: {storage: 1Gi}}}}}}]",
        "SCP0022 volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes: must be given",
    ),
    (
        "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {metadata: {name: x}, spec: {accessModes: [ReadWriteOnce], \
         resources: {requests: {storage: 1Gi}}}}}}]",
        "SCP0022 volumes[0].ephemeral.volumeClaimTemplate.metadata.name: must be left out: a template of claims has labels and \
         annotations only",
    ),
    (
        "volumes: [{name: v, projected: {sources: [{configMap: {name: a, items: [{key: a, path: x}]}}, \
         {secret: {name: b, items: [{key: a, path: x}]}}]}}]",
        "SCP0019 volumes[0].projected.sources[1].secret.items[0].path: must be unique in the volume: `x` is there before",
    ),
    (
        "{volumes: [{name: v, emptyDir: {}}], containers: [{name: a, image: a, volumeDevices: [{name: v, devicePath: /a}]}]}",
        "SCP0022 volumeDevices[0].name: must be a volume of a claim, and `v` is none",
    ),
    (
        "metadata: {annotations: {controller.kubernetes.io/pod-deletion-cost: '+1'}}",
        "SCP0022 metadata.annotations.controller.kubernetes.io/pod-deletion-cost: must be a whole number of 32 bits, e.g. \
         `-10`, not `+1`",
    ),
];

/// Fields that servers drop as long as the feature is off: no rule holds for them.
#[test]
fn what_a_version_drops_breaks_no_rule() {
    let twice = "resizePolicy: [{resourceName: cpu, restartPolicy: a}, {resourceName: cpu, restartPolicy: a}]";
    assert_eq!(of_container(twice, Some(32)), [""; 0]);
    assert!(!of_container(twice, Some(33)).is_empty());
    assert!(!of_container("resizePolicy: [{resourceNam: cpu}]", Some(32)).is_empty(), "names are checked before");
    let image = "volumes: [{name: v, image: {reference: ''}}]";
    assert_eq!((of_template(image, Some(34)).len(), of_template(image, Some(35)).len()), (0, 1));
    let sleep = "lifecycle: {preStop: {sleep: {seconds: 0}}}";
    assert_eq!((of_container(sleep, Some(32)).len(), of_container(sleep, Some(33)).len()), (1, 0));
}

#[test]
fn volumes_labels_and_what_goes_into_containers_are_judged_as_a_server_does() {
    for &(template, expected) in TEMPLATE_FAULTS {
        assert_eq!(of_template(template, None), [expected], "{template}");
    }
}

#[test]
fn what_a_server_takes_has_no_fault() {
    for fields in [
        "",
        "resources: {requests: {cpu: 0.5, memory: 1e6}, limits: {cpu: '1', memory: 1Gi, hugepages-2Mi: 4Mi, example.com/gpu: 1}}",
        "ports: [{containerPort: 80, name: http, hostPort: 0}, {containerPort: 80, protocol: UDP}]",
        "livenessProbe: {httpGet: {port: http, path: /, scheme: HTTPS, httpHeaders: [{name: a, value: b}]}, successThreshold: 1}",
        "readinessProbe: {grpc: {port: 9000}, successThreshold: 3}",
        "lifecycle: {preStop: {sleep: {seconds: 5}}, stopSignal: SIGTERM}",
        "env: [{name: A}, {name: b.c, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['a/b']\"}}}, {name: c d, value: ''}]",
        "securityContext: {runAsUser: 0, capabilities: {add: [NET_ADMIN]}, seccompProfile: {type: RuntimeDefault}}",
        "volumeMounts: [{name: a, mountPath: /a, subPathExpr: $(A)}], volumeDevices: [{name: b, devicePath: /dev/b}]",
        "image: null, livenessProbe: null, image: a",
        "restartPolicy: OnFailure",
    ] {
        let template: Value = serde_saphyr::from_str(&format!("{{name: a, {}}}", fields.replace("image: null, ", "")))
            .unwrap_or_else(|error| panic!("{fields}: {error}"));
        let mut container = template;
        container["image"] = "a".into();
        let faults = in_template(&json!({ "containers": [container] }), None);
        assert_eq!(faults, [], "{fields}");
    }
    for template in [
        "volumes: [{name: a}, {name: b, emptyDir: {medium: Memory, sizeLimit: 1Gi}}, {name: c, configMap: {name: a, optional: true, defaultMode: 420}}]",
        "volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 3600}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}}]",
        "volumes: [{name: p, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]",
        "initContainers: [{name: a, image: a, restartPolicy: Always, startupProbe: {exec: {command: [a]}}}]",
        "{containers: 5, volumes: a, metadata: []}",
        "[]",
    ] {
        assert_eq!(of_template(template, None), [""; 0], "{template}");
    }
}

#[test]
fn a_version_takes_what_it_has() {
    for (fields, minor, expected) in [
        (
            "startupProbe: {tcpSocket: {port: 1}}",
            15,
            "SCP0026 startupProbe: needs Kubernetes 1.16 or later, and this is 1.15; remove it",
        ),
        (
            "resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]",
            26,
            "SCP0026 resizePolicy: needs Kubernetes 1.27 or later, and this is 1.26; remove it",
        ),
        (
            "restartPolicy: Always",
            33,
            "SCP0022 restartPolicy: must not be set for a container before Kubernetes 1.35; a native sidecar is an item of `initContainers`",
        ),
        (
            "env: [{name: c d}]",
            31,
            "SCP0022 env[0].name: must be letters, digits, `-`, `_` and `.`, and not begin with a digit, not `c d`",
        ),
        (
            "lifecycle: {preStop: {sleep: {seconds: 1}}}",
            28,
            "SCP0026 lifecycle.preStop.sleep: needs Kubernetes 1.29 or later, and this is 1.28; remove it",
        ),
    ] {
        assert_eq!(of_container(fields, Some(minor)), [expected], "{fields}");
        assert_eq!(of_container(fields, None), [""; 0], "{fields}");
    }
    // A field that had another name then exists.
    assert_eq!(of_container("lifecycle: {preStop: {exec: {command: [a]}}}", Some(13)), [""; 0]);
    // A version beyond the table counts as the newest, with possible further fields. A version before the table counts
    // as the oldest.
    assert_eq!(of_container("quantum: {}", Some(38)), [""; 0]);
    assert!(!of_container("quantum: {}", Some(37)).is_empty());
    assert!(!of_container("livenesProbe: {}", Some(38)).is_empty());
    assert_eq!(of_container("startupProbe: {tcpSocket: {port: 1}}", Some(99)), [""; 0]);
    assert!(!of_container("startupProbe: {tcpSocket: {port: 1}}", Some(1)).is_empty());
}

#[test]
fn a_pod_is_judged_with_its_metadata_wherever_it_lies() {
    let pod = json!({ "metadata": { "annotations": { "a": false } }, "spec": { "contaners": [{ "name": "a" }] } });
    let told = |faults: Vec<Fault>| {
        faults.into_iter().map(|fault| format!("{} {:?}", fault.field, fault.kind)).collect::<Vec<_>>()
    };
    let expected = ["metadata.annotations.a Type", "spec.contaners Misspelt"];
    let body =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"], "status": {} });
    assert_eq!(told(in_pod(&body, "", None)), expected);
    let expected = expected.map(|fault| format!("spec.template.{fault}"));
    assert_eq!(told(in_pod(&pod, "spec.template", None)), expected);
    assert_eq!(told(in_metadata(&pod["metadata"])), ["metadata.annotations.a Type"]);
    assert_eq!(
        in_pod(&json!({ "spec": { "containers": [{ "name": "a", "image": "a" }] } }), "spec.template", None),
        []
    );
}

#[test]
fn each_field_that_a_version_lacks_is_named_with_its_path() {
    let template = json!({
        "containers": [{
            "name": "a", "restartPolicy": "Always", "env": [{ "name": "x", "valeu": "y" }], "nothing": null,
            "resources": { "limits": { "any": "1" }, "limitz": {} },
        }],
        "volumes": [{ "name": "v", "image": { "reference": "r" } }],
        "env": [{ "name": "e", "of": "" }],
    });
    let template: Template = serde_json::from_value(template).unwrap();
    let never = ["containers[0].env[0].valeu", "containers[0].nothing", "containers[0].resources.limitz", "env[0].of"];
    let lacking = |more: &[&str]| {
        let mut lacking: Vec<_> = never.iter().chain(more).map(|field| format!("spec.template.{field}")).collect();
        lacking.sort();
        lacking
    };
    for (minor, expected) in [
        (Some(1), lacking(&["containers[0].restartPolicy", "volumes[0].image"])),
        (Some(27), lacking(&["containers[0].restartPolicy", "volumes[0].image"])),
        (Some(28), lacking(&["volumes[0].image"])),
        (Some(NEWEST), lacking(&[])),
        (Some(NEWEST + 1), Vec::new()),
        (Some(u32::MAX), Vec::new()),
        (None, Vec::new()),
    ] {
        let mut unknown = unknown_fields(&template, minor);
        unknown.sort();
        assert_eq!(unknown, expected, "{minor:?}");
    }
}
