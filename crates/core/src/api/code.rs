//! The single table of all reasons. Conditions, events, metric labels, command output and the page `docs/codes.md` use
//! it.

use std::fmt;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $number:literal $name:ident $fix:literal;)*) => {
        /// A reason, as `SCPnnnn` and as a CamelCase name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Code { $($(#[doc = $doc])* $name = $number,)* }

        impl Code {
            /// Every code, in the order of its number.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// The CamelCase name: the `reason` of conditions and the value of metric labels.
            pub fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name)),* }
            }

            /// The meaning of the code, in a sentence or two.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$name => concat!($($doc,)*).trim_ascii()),* }
            }

            /// The fix for the user; empty if none is needed.
            pub fn fix(self) -> &'static str {
                match self { $(Code::$name => $fix),* }
            }
        }
    };
}

codes! {
    /// The spec is valid.
    1 Valid "";
    /// The policy is in effect: new workloads that match get its template.
    2 Programmed "";
    /// `spec.suspend` is true: the policy is kept, and does nothing.
    3 Suspended "Set `spec.suspend: false` to put it in effect.";
    /// `spec.mode` is `Audit`: nothing is registered, nothing is injected.
    4 Audit "Set `spec.mode: Enforce` to put it in effect.";
    /// The operator has seen the policy and is working on it.
    5 Reconciling "Wait some seconds. If it stays, see the operator's log.";
    /// The name of the policy cannot be used: it becomes a label value and an annotation key.
    10 InvalidName "Rename it: at most 63 characters, and not `true` or `false`.";
    /// A field of the spec has a wrong type or a value outside its range.
    11 InvalidField "Correct the field that the message names.";
    /// The spec has a field that does not exist.
    12 UnknownField "Remove it, or correct its spelling: `kubectl explain sidecarpolicies.spec` lists the fields.";
    /// The template adds nothing, and there are no validations.
    13 EmptyTemplate "Give `spec.template` at least one container, init container, volume or other content.";
    /// A selector or a list of namespaces is present without one requirement. It could mean everything or nothing.
    14 EmptySelector "Leave the field out to match all, or give it a requirement.";
    /// A selector's requirement is not well-formed.
    15 InvalidSelector "Operators `In` and `NotIn` need values, `Exists` and `DoesNotExist` must have none.";
    /// An expression is not well-formed, uses an unknown name, or has a result of the wrong type.
    16 InvalidExpression "Correct the expression at the line and column that the message names.";
    /// The target may not be chosen.
    17 TargetRefused "Target workloads that carry a pod template: deployments, statefulsets, daemonsets, cronjobs, jobs, or pods. Jobs need another engine than `Initializer`.";
    /// Two targets name one resource with different paths of its pod template.
    18 AmbiguousTemplatePath "Give one `templatePath` for each resource.";
    /// Two containers, volumes, ports or mounts of the template collide with each other.
    19 DuplicateName "Rename or remove one of them.";
    /// The template is larger than 64 KiB of JSON, or has more than 64 containers.
    21 TemplateTooLarge "Move content into a ConfigMap that the template mounts.";
    /// An item of the template is not well-formed.
    22 TemplateInvalid "Correct the item that the message names.";
    /// The initializer name may not be used.
    23 InvalidInitializerName "Use a name of three or more segments under `scpol.dev`, or give it to the operator with `--initializer-name`.";
    /// A parameter is not well-formed, or a `$(scpol.NAME)` of the template names no parameter.
    25 ParameterInvalid "Correct the field that the message names.";
    /// The template has a field that this server does not know: the server would drop it silently.
    26 UnknownTemplateField "Remove the field, correct its spelling, upgrade the server, or switch on the feature gate of the field.";
    /// The server has no such resource.
    27 TargetNotServed "Correct group, version or resource; `kubectl api-resources` lists what the server has.";
    /// Another policy uses the same initializer name, and used it first.
    28 DuplicateInitializerName "Give each policy its own `spec.initializerName`.";
    /// Two policies of one priority add one name differently: both are left out of the workloads that both match.
    29 Conflicted "Rename in one of them, or narrow the selection of one.";
    /// Two policies in the files have one name: of the two, a cluster keeps the one that is applied last.
    30 DuplicatePolicy "Rename one of them, or leave one out.";
    /// The requirements of a selector contradict each other, or another selector: the policy matches nothing.
    31 ContradictorySelector "Remove one of the two requirements that the message names.";
    /// Every namespace that the policy is for is protected or excluded: it matches nothing.
    32 NoNamespaceLeft "Name a namespace that is neither protected nor excluded.";
    /// An entry of `namespaces` matches only protected or excluded namespaces: it adds nothing.
    33 NamespaceUnreachable "Remove the entry, or what excludes it. The built-in protection cannot be lifted.";
    /// An image has no tag, or the tag `latest`: what runs depends on when it was pulled.
    34 ImageNotPinned "Name a version, or a digest, of the image.";
    /// A container requests no CPU or no memory: it is scheduled as if it needed none, is the first to be evicted, and a quota
    /// refuses it. A HorizontalPodAutoscaler by utilization stops scaling such pods.
    35 RequestsMissing "Set `resources.requests` of the container, for `cpu` and `memory`.";
    /// The template has something that Kubernetes has deprecated or removed, or advises against.
    36 Deprecated "Use what the message names instead.";
    /// Two containers that may be in one pod have the same port. Kubernetes allows it, and only one of them can listen on it.
    37 SharedContainerPort "Give one of them another port, unless only one of them listens.";
    /// A plain sidecar goes into pods that end by themselves: it keeps them, and the Job, from ending.
    38 JobsNeverEnd "Leave `spec.nativeSidecars` out, or target what does not end.";
    /// `failurePolicy: Fail` on pods: on the Initializer engine no pod can be created while the operator cannot work, its own included.
    39 FailBlocksPods "Target Deployments, or use `spec.failurePolicy: Ignore`.";
    /// The template refers to objects that it does not contain. They must exist in the namespace of every workload. Nothing is
    /// copied.
    40 NeedsReference "Create it in every namespace that the policy is for, or mark the reference `optional`.";
    /// A field has no effect, because of another one.
    41 NoEffect "Remove it, or correct what the message names.";
    /// An expression does not depend on the object: its result is always the same.
    42 ConstantExpression "Use `object` or `namespaceObject` in it, or remove it.";
    /// The template goes beyond the level of the Pod Security Standards that the operator's flag `--pod-security` sets.
    43 PodSecurity "Change the field that the message names. If the template needs it: limit the policy, by names in `spec.namespaces`, to namespaces in the operator's `--privileged-namespaces`.";
    /// The template has a host path, an added capability, or a volume that may give an identity of the pod, which the operator allows only by a flag.
    44 PowerNotGranted "Remove it, or start the operator with what the message names in `--allow-in-templates`.";
    /// The template names an image that the operator's flag `--allowed-images` does not allow.
    45 ImageNotAllowed "Use an allowed image, or ask for a longer list.";
    /// The author check refuses a write to a policy: its author may not create pods in every namespace where the policy injects, before or after
    /// the write. The API server checks this itself (`config/author-check.yaml`), or asks the operator (`--author-check`).
    46 AuthorLacksRight "List in `spec.namespaces` only namespaces where you may create pods: at most 28, without globs. Or ask a user who may create pods in all namespaces to make the change.";
    /// The author check refuses a write to a policy that has `updateStrategy.type: RollingUpdate` before or after the write: its author may not
    /// change workloads as a rollout does. That takes the verb `patch` for the targeted kinds. For pods it takes `create` for `pods/eviction`, and
    /// `patch` unless `podUpdate` is `Recreate`.
    47 AuthorLacksRolloutRight "Get the right that the message names, set `updateStrategy.type: OnDelete`, or ask a user with that right to make the change.";
    /// The author check refuses a write to a policy that has `spec.replaces`, or a `spec.priority` above 0, before or after the write: its author
    /// may not create pods in all namespaces. Such a policy takes the place of policies of others, or wins conflicts with them.
    48 AuthorLacksPriorityRight "Remove `spec.replaces` and `spec.priority`, or ask a user who may create pods in all namespaces to make the change.";
    /// A write sets the annotation `scpol.dev/author`, which records the last author of a policy, to another user than its
    /// author: the author check refuses it. Where `config/author-record` is in effect, the server writes the annotation itself.
    49 ForeignAuthorRecord "Leave the annotation `scpol.dev/author` out of what you send, also of a backup.";
    /// Two containers of one pod have a port of the same name. A Service that names the port goes to the first of them.
    50 SharedPortName "Rename the port in one of them, or leave the sidecar behind the workload's containers (`spec.position.containers`).";
    /// An environment variable refers by `$(NAME)` to a later one: the kubelet does not expand the reference.
    51 LateReference "Change the position of the added variables with `spec.position.env`.";
    /// With the template, a pod of the quality of service class Guaranteed becomes Burstable: the kubelet evicts it earlier,
    /// and takes away its exclusive CPUs.
    52 QualityOfServiceChanged "Set `resources.limits` of the container for `cpu` and `memory`, and leave `resources.requests` out or set them to the same.";
    /// A rollout may touch all workloads at once: when one fails, there is nothing left to halt.
    53 RolloutAtOnce "Lower `maxUnavailable`, or add a step.";
    /// Another policy of a higher priority that matches this workload adds the same name differently: that one is injected, and this one is
    /// left out.
    54 Outranked "Rename in this policy, or narrow its selection. A higher `spec.priority` than that of the other would leave the other one out.";
    /// An environment variable or an argument looks like a password or a token, and has its value in the template. Everyone who may read policies, pods or
    /// ControllerRevisions reads it, and a stored revision keeps it after the policy is edited.
    55 LiteralSecret "Put the value into a Secret, and refer to it by `valueFrom.secretKeyRef`. Then change the password or token: revisions keep the old one.";
    /// `failurePolicy: Fail` reaches namespaces of add-ons that a cluster needs to start: network, DNS, certificates, disks.
    /// While the operator cannot answer, their pods are refused, and the operator may need them to start.
    56 FailBlocksAddOns "Exclude these namespaces with `spec.excludeNamespaces`, select namespaces by label, or use `spec.failurePolicy: Ignore`.";
    /// Pods with pull secrets of their own do not get those of their ServiceAccount. A workload that relied on those loses them
    /// by the template, and its own images cannot be pulled. Pods as a target are safe: they get those of the ServiceAccount
    /// before the injection.
    57 PullSecretsReplaced "Target pods. Or add the Secret to the ServiceAccounts instead, or list those of the ServiceAccounts in the workloads.";
    /// With the template, pods fit on fewer nodes, or fewer of them on one node: a host port, a claim or disk that one node may attach, a device, a path
    /// or a profile that a node must have.
    58 NodesLimited "Make sure that enough nodes fit, or remove what the message names. For one agent on each node use a DaemonSet.";
    /// The application waits for a container of the template, or ends with it: it is ready, starts, or stays on its node only
    /// while that container works.
    59 HoldsApplication "Keep it if that is intended. Otherwise remove the field that the message names.";
    /// The cluster autoscaler does not remove the node of a pod with the template: by an annotation of the template, or by a local volume that is not in
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes` of the workload.
    60 ScaleDownBlocked "Remove the annotation, or add the volume to that annotation of the workload if its content may be lost.";
    /// A container of the template cannot start in any pod.
    61 NeverStarts "Correct the field that the message names.";
    /// A container of the template is root. Pods with `runAsNonRoot: true` are left out, because the kubelet would not start it there.
    62 RootUser "Set `securityContext.runAsNonRoot: false` in the container if it may be root in every pod.";
    /// The workload is a hook of Helm or Argo CD, which wait until it ends.
    63 InHook "Use a native sidecar, which ends with the hook, or leave the hook out: `scpol.dev/inject: \"false\"` on its pod template.";
    /// A variable of the template with `merge` goes into a container that does not have it, and that has sources of variables. A variable wins over
    /// sources: if one of these sets it, the container loses that value.
    68 MergedOverSources "Give the variable a `value` in the container, or leave the container out: `spec.template.appContainers`.";
    /// Another policy takes the place of this one: it matches the workload, fits it, and has this one in `spec.replaces`. This one is left out.
    66 Replaced "None. Delete this policy once the rollout of the other one is done.";
    /// `spec.replaces` names the policy itself, or leads back to it through other policies. None of them is injected.
    67 ReplacesInvalid "Remove the name in the message from `spec.replaces`.";

    /// The object brings its own list of initializers, which takes a right: it stays as it is.
    100 Bypassed "";
    /// A mirror pod, or a static pod in a file: the kubelet owns it, nothing can be added.
    101 MirrorPod "";
    /// The namespace is protected.
    102 NamespaceProtected "Deploy to another namespace. The built-in protection cannot be lifted.";
    /// The object is being deleted.
    103 Terminating "";
    /// The pod uses the host's network or processes.
    104 HostNetwork "Set `spec.hostNetworkPods: Inject` if the sidecar may share the host's network.";
    /// The workload opted out by `scpol.dev/inject`.
    105 OptedOut "Remove the annotation or label, or set `spec.optOut: Denied`.";
    /// The workload carries the policy's marker with the current hash, and all of its content.
    106 AlreadyInjected "";
    /// The object is no target of the policy.
    107 TargetNotMatched "";
    /// The namespace is not among `namespaces`, or is among `excludeNamespaces`.
    108 NamespaceNotMatched "";
    /// The labels of the workload's Namespace do not satisfy `namespaceSelector`.
    109 NamespaceLabelsNotMatched "";
    /// The workload's annotations do not satisfy `annotationSelector`.
    110 AnnotationNotMatched "";
    /// The workload's labels do not satisfy `labelSelector`.
    111 LabelsNotMatched "";
    /// An expression of `matchConditions` is false.
    112 ConditionNotMatched "";
    /// The pod ends by itself, and a plain sidecar would keep it from ending: there are no native sidecars here.
    113 JobSkipped "Upgrade server and nodes to 1.29, or set `spec.jobs: Inject` if the sidecar ends by itself.";
    /// The workload matches and has no sidecar. It was created before the policy or while no engine served it, or an update removed the
    /// sidecar: `kubectl replace`, `helm upgrade --force`, any PUT.
    114 Missed "Create it again, because only creates are injected: `scpol status POLICY` has the command. If the policy targets pods, restart the workload that makes them.";
    /// The policy that asked for this workload does not exist any more.
    115 PolicyGone "";
    /// The workload opted out, and the policy does not allow it.
    116 OptOutIgnored "Remove the annotation or label, or set `spec.optOut: Allowed`.";
    /// `scpol.dev/inject` is empty or too long, or names a policy that does not exist.
    117 InvalidOptOut "Use `\"true\"`, `\"false\"`, or names of policies, separated by commas.";
    /// The Initializer engine cannot change objects of that kind, such as Jobs: another engine serves them.
    118 UnsupportedKind "Make the webhook engine available, or target pods instead.";
    /// The policy matches, and refuses such pods instead of leaving them out: `hostNetworkPods: Refuse` or `jobs: Refuse`.
    119 PodRefused "Change the field of the pod that the message names, or have the policy say `Skip` or `Inject`.";
    /// The workload has the sidecar, and what the policy added was changed since: by `kubectl set image '*=..'`, `set env`,
    /// `edit`, or by a webhook that rewrites images. It stays as it is. New pods of the workload have the change, too.
    120 Edited "Undo the change that the message names, or create the workload again. With `updateStrategy: {type: RollingUpdate, edited: Restore}` a rollout undoes it.";
    /// The workload comes with the content of an earlier version of the policy. It is let through, because it cannot be updated
    /// here.
    121 Outdated "Give the earlier policy with `--earlier`, or take the content out: `scpol uninject`. A rollout brings stored workloads up to date.";
    /// A label or annotation of the workload, its pod template or pod resembles one of ours or that of a parameter, and has no effect.
    123 MisspeltKey "Correct the key as the message says, or remove it.";
    /// A manifest is only a part of an object, as a kustomize patch: another tool completes it. Only the commands on files know this.
    124 PartialManifest "Give the complete manifest: `kubectl kustomize FOLDER`, or `helm template CHART`, prints it.";

    /// The workload uses a name of the template differently.
    200 NameConflict "Rename in the workload or in the template.";
    /// Another policy of the same priority that matches this workload adds the same name differently: neither is injected.
    201 PolicyConflict "Rename in one of the policies, narrow the selection of one, or give one a higher `spec.priority`.";
    /// A container of the template mounts a volume that neither the template nor the workload has.
    202 VolumeMissing "Add the volume to `spec.template.volumes`.";
    /// The server refused the workload with the template in it.
    203 ResultInvalid "Correct what the server's message names, in the template.";
    /// Admission or authorization refused the workload with the template in it.
    204 AdmissionDenied "See the message: a LimitRange, a PodSecurityPolicy or another admission plugin.";
    /// The workload with the template in it exceeds a quota.
    205 QuotaExceeded "Raise the quota, or lower the template's requests.";
    /// The object has no pod template where its kind should have one.
    206 NoPodTemplate "";
    /// No decision could be made in 20 s.
    207 NoDecision "See the operator's log; the API server may be slow.";
    /// The workload's Namespace could not be read, and the policy selects by its labels.
    209 NamespaceUnreadable "Grant `get` on namespaces to the operator; in files, add the Namespace.";
    /// The object breaks one of the policy's `validations`: its create is refused.
    210 ValidationFailed "Correct the object as the message says.";
    /// An expression failed when it ran: it reads an absent field, or costs too much. That is a failure, neither true nor
    /// false.
    211 ExpressionFailed "Guard the field that the message names with `has(..)` or an optional.";
    /// An admission review could not be understood: it is answered with an error, and the API server does as `failurePolicy` says.
    212 ReviewInvalid "Only API servers post reviews: see who else can reach the port of the webhook.";
    /// The policy says `Fail`, the workload matches, and it would be stored without the sidecar: its create is refused.
    213 SidecarMissing "See `scpol check`: the engine of the policy did not act. To let workloads in without the sidecar, set `spec.failurePolicy: Ignore`; while no operator runs, only break-glass does it.";
    /// The manifest of the workload has a field that is misspelt or has the wrong type. Only the commands on files check this.
    214 WorkloadInvalid "Correct the manifest as the message says.";
    /// A label of the template breaks the workload's own selector, or is one that Kubernetes itself gives the pods of a Job:
    /// the server would refuse the workload.
    225 SelectorMismatch "Rename the label in the template, or leave such workloads out by `spec.labelSelector`.";
    /// The pod has `spec.resources`, and its containers with those of the template request more than that, or have a higher
    /// limit.
    226 PodResourcesExceeded "Raise `spec.resources` of the pod by what the template's containers request.";
    /// A container of the template uses a resource claim that the pod does not have.
    227 ClaimMissing "Add the claim to `spec.resourceClaims` of the pod, or leave such workloads out by a selector.";
    /// A field of the template and a field of the pod are not allowed together: the server would refuse the workload, or the kubelet would not
    /// start the container.
    228 PodFieldMismatch "Change one of the two fields that the message names, or leave such workloads out by a selector.";
    /// The annotations of the pod, with those of the template and our marker, would be larger than the server takes.
    229 AnnotationsTooLarge "Keep less in annotations of the pod: all of them have 256 KiB together.";
    /// The workload's Namespace enforces a level of the Pod Security Standards that does not admit the template: the pods would be refused.
    230 NamespaceForbids "Change the field that the message names, or leave the namespace out: `spec.excludeNamespaces`, `spec.namespaceSelector`.";
    /// The workload has the sidecar, and in some of its pods the sidecar does not start: its image cannot be pulled, its configuration lacks
    /// something, or it ends again and again.
    231 SidecarNotStarting "See the events of a pod that the message names: `kubectl describe pod`. Correct the template, and roll out the workloads, because only creates are injected.";
    /// The pods of the workload lose the pull secrets of their ServiceAccount, which go only to pods that have none: its own images may not be pulled.
    232 PullSecretsLost "List the pull secrets of the ServiceAccount in `imagePullSecrets` of the workload, or target pods.";
    /// A variable of the template goes into a container with `envFrom`, whose content is not known here. If the source has a key of that name, the
    /// variable of the template wins.
    233 VariableMayBeHidden "See whether the ConfigMap or Secret has the key. If it does, leave the container out with `appContainers`, or rename the variable.";
    /// The `podFailurePolicy` of the Job judges exit codes of all containers, also that of the sidecar, which ends with another code than 0 when it is
    /// stopped.
    234 ExitCodesJudged "Name the container of the workload in `onExitCodes.containerName`.";
    /// An autoscaler of the workload measures or sizes the containers of the template as well.
    235 AutoscalerMisled "Request the resource that the message names, measure one container with `ContainerResource`, or exclude ours in `containerPolicies`.";
    /// With the template, the kubelet could not start a container. The API server does not check that.
    236 NotStartable "Change the field that the message names.";
    /// The workload stays as it is: content that would change or go belongs to another policy, too, whose marker lists it, or which adds
    /// the same.
    237 SharedContent "Change the policy that the message names in the same way, or give the content another name in one of them. If that policy is gone: `scpol rollout remove` takes its content out.";
    /// A variable of the template with `merge` cannot join that of the workload, which has no `value`, or a too long one. For
    /// `PATH` it must be there: otherwise the value would replace that of the image.
    240 VariableNotJoined "Give the variable a `value` in the workload, or leave its container out: `spec.template.appContainers`.";
    /// `template.pod` sets a field that the workload has with another value, or the pod would have more than the server takes.
    241 PodSettingConflict "Change the field in the workload or in `spec.template.pod`, or leave such workloads out by a selector.";
    /// Two containers of the workload have different things under one name or path, and `template.share` wants one for the sidecar.
    242 SharedDiffers "Name one of the containers in `spec.template.share[].from`, or rename in the workload.";
    /// `template.share` would give a container more than 64 mounts or variables of the workload, or more than 8 KiB of their names.
    243 SharedTooMany "Name fewer in `spec.template.share[]`: narrower globs, or fewer containers in `from`.";
    /// A variable of the template has `merge`, which joins a `value` of the manifest. Where only the image of a container sets
    /// the variable, the container loses that value. `lint` reports each such policy.
    244 MergedOverImage "Make sure that images do not set the variable. Otherwise give it a `value` in the workload, with that of the image.";
    /// A value that the workload, its Namespace or the policy's expression gives a parameter does not fit: another type, out of bounds, none
    /// of the allowed values, or one that makes the template invalid.
    245 ParameterRefused "Write a value that the message allows: `scpol parameters POLICY` lists them. Without the annotation, the default applies.";
    /// A defect of ours: the object is tried again; a policy is refused.
    208 Panicked "Please report it with the operator's log.";

    /// The policy wants native sidecars, which this server does not have.
    316 NativeSidecarsUnavailable "Upgrade server and nodes to 1.29, or use `spec.nativeSidecars: ForJobs` or `Never`.";
    /// Policies on one resource name different engines; order and conflicts need one for all of them.
    311 EngineMismatch "Use one `spec.engine` for all policies that target the resource, or `Auto`.";
    /// MutatingAdmissionPolicy is not served in a version that the operator uses.
    317 AdmissionPolicyApiOff "Use `spec.engine: Webhook`, or a server of 1.36 or later that serves `admissionregistration.k8s.io/v1`, or 1.35 with its beta switched on.";
    /// MutatingAdmissionPolicy is served, and policies have no effect: its feature gate or its admission plugin is off.
    318 AdmissionPolicyPluginOff "Start the API server with `--feature-gates=MutatingAdmissionPolicy=true`, and without `MutatingAdmissionPolicy` in `--disable-admission-plugins`.";
    /// The policy cannot be expressed as a MutatingAdmissionPolicy. Nothing is approximated: if the policy has the highest priority on its
    /// resource, all policies there go to the webhook. Otherwise it alone is left out.
    319 NotExpressible "Change what the message names. A policy of the highest priority on its resource may leave `spec.engine` at `Auto`, or set `Webhook`, instead.";
    /// The API server did not get an answer from the webhook.
    320 WebhookUnreachable "See whether the API server reaches the Service `scpol` on its port, through firewalls and network policies.";
    /// The API of webhooks is not served, or its admission plugin is off.
    321 WebhookOff "Start the API server without `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` in `--disable-admission-plugins`.";
    /// The certificate of the webhook has expired, is for another name, or cannot be read.
    322 CertificateInvalid "Delete the Secret `scpol-webhook`: the operator makes a new one. With your own certificates, renew the files.";
    /// The certificate of the webhook expires soon, and has not been renewed.
    323 CertificateExpiring "See the operator's log. With your own certificates, renew the files.";
    /// A registration of ours was edited by hand; it is repaired at once.
    324 RegistrationEdited "Change the policy, not what is generated from it.";
    /// Before 1.21 a webhook cannot exclude namespaces, so `Fail` would block kube-system while the operator is down.
    325 FailNotSafe "Use `spec.failurePolicy: Ignore`, or a server of 1.21 or later.";
    /// The engine cannot run on this server.
    301 EngineUnavailable "Choose another `spec.engine`, or a server version that has it.";
    /// The API of the Initializer engine is switched off.
    302 InitializersApiOff "Start the API server with `--runtime-config=admissionregistration.k8s.io/v1alpha1=true`.";
    /// The API of the Initializer engine is on, and its admission plugin is off.
    303 InitializersPluginOff "Start the API server with `--enable-admission-plugins=Initializers`.";
    /// The operator, or the user who installs it, lacks a right.
    304 MissingRight "Apply the install file again as an administrator; for Secrets, custom resources, `--author-check`, `--priority-lane` or `--reports` the folder of that name in `config/rbac`. Or grant the verb that the message names.";
    /// The operator has not read all objects yet that it needs to register.
    305 NotSynced "Wait some seconds. If it stays, see the operator's log.";
    /// A person deleted the registration, as an emergency brake. The operator does not register again before the hold is over.
    306 RemovedByHand "Wait for the hold to end (`--repair-hold`), or suspend the policy and resume it.";
    /// An object of the name that we would generate exists without our label. It is never touched.
    307 NameTaken "Delete or rename the foreign object.";
    /// A foreign configuration lists this policy's initializer name.
    308 ForeignConfiguration "Remove the name from the foreign configuration, or change `spec.initializerName`.";
    /// The operator stopped in good order and took the registration with it, so that creates go on.
    309 Stopped "Start the operator.";
    /// An object has waited for us too long.
    310 PendingTooLong "See the operator's log, and `scpol drain --list`.";
    /// Another admission plugin refused the test create. The policy is registered, but unverified.
    315 ProbeFailed "Correct what the message names, or exempt the operator's namespace from it. For built-in kinds it is tried again each minute.";
    /// Pods cannot bypass Initializers: with every replica down, no new pod of the operator can start.
    314 PodsCannotBypass "Prefer to target Deployments. To recover: delete the initializer configuration, then `scpol drain`.";
    /// The server cannot be reached.
    313 ServerAway "Wait; the operator tries again by itself.";
    /// The engine does not support the server's version.
    312 VersionUnsupported "See the message.";
    /// The answer is unknown: the server refuses it, or does not answer.
    326 CannotTell "Ask as a user who may read what the message names.";
    /// The CRD of SidecarPolicies, or the operator, is not installed.
    327 NotInstalled "Apply the install file for the version of the server (`config/install.yaml`; below 1.30 `config/install-older.yaml`; below 1.16 `config/install-legacy.yaml`).";
    /// What is installed is of another release than this `scpol`.
    328 ReleasesDiffer "Apply the install file of the release that you want, and use its `scpol`.";
    /// The operator is installed, and no replica of it is ready, or none leads.
    329 OperatorNotReady "See why its pods are not ready: `kubectl describe` and `kubectl logs` of them, in the operator's namespace.";
    /// A registration of ours is there, and no policy that is in effect wants it.
    330 RegistrationLeft "Start the operator, which removes it, or run `scpol uninstall`.";
    /// Creates that wait for the operator take up the API server's places for writes, so that it refuses others with 429, those of the
    /// operator included. Nothing is lost: they are completed as places come free.
    331 TooManyRequests "Start the operator with `--priority-lane`, raise `--max-mutating-requests-inflight` of the API server, or create fewer objects at once.";
    /// The server rejects the registration of the policy: by another admission plugin, a quota or a size limit. The earlier registration of
    /// this policy and all other policies stay in effect. The operator tries again by itself.
    332 RegistrationRefused "Change the admission plugin or quota that the message names so that it lets objects with the label `app.kubernetes.io/managed-by: scpol` pass, or make the policy smaller.";
    /// There are more policies than `--max-policies`, or larger ones. This one is newer than those that the operator uses.
    335 TooManyPolicies "Delete policies that are not needed, make large ones smaller, or start the operator with a larger `--max-policies`.";
    /// The last author of a stored policy has lost a right that the author check asks for. The policy still injects
    /// (`scpol check --authors`).
    336 AuthorLostRight "Ask a user who has the right to write the policy again. Or delete the policy, or give the right back.";

    /// The spec asks for a new revision, and no workload has been touched yet.
    400 NewRevision "";
    /// The operator updates workloads.
    401 RollingOut "Wait: `scpol rollout status POLICY` shows the progress.";
    /// The rollout waits: in a step with `pause`, or because `spec.updateStrategy.paused` is true.
    402 Paused "`scpol rollout resume POLICY` goes on. A pause with a duration ends by itself.";
    /// The rollout failed: a replacement was not available in time, or its sidecar did not start. No further workload is touched, and new
    /// workloads outside the steps still get the current revision.
    403 Halted "See the workload that the message names. Correct the template, or go back: `scpol rollout undo POLICY`.";
    /// All workloads that can be updated have the update revision.
    404 Complete "";
    /// The content that the marker lists differs from what the policy injected. It counts as the user's, and stays.
    410 ContentEdited "Undo the edit that the message names, or create the workload again.";
    /// The operator has no revision with the hash in the workload's marker: it cannot distinguish the policy's content from the
    /// user's.
    411 RevisionUnknown "Create the workload again. A larger `spec.revisionHistoryLimit` keeps more revisions.";
    /// The operator does not evict the pod, because no controller that it knows would create it again: the pod has no owner, or an unknown
    /// one, or is a mirror pod.
    412 NotRecreated "Create the pod again yourself, or let a Deployment create it.";
    /// The workload is a Job, or the pod of one: it ends by itself, and is never updated.
    413 EndsByItself "";
    /// The Namespace, the pod or the workload has the annotation `scpol.dev/rollout: "false"`, or `kubectl rollout pause` has paused the
    /// workload. In a removal: `partition` of its StatefulSet keeps the pod.
    414 RolloutOptedOut "To have it updated, remove the annotation, run `kubectl rollout resume`, or lower `partition`.";
    /// A PodDisruptionBudget allows no eviction now: the rollout waits.
    415 DisruptionBudget "Wait until the pods of the budget are ready again. A budget that never allows an eviction needs a change, or more replicas.";
    /// A workload that was brought up to date is not available within `progressDeadlineSeconds`, or its sidecar fails. Or it was not
    /// available before, as more than 256 others, and is left as it is.
    416 ReplacementNotReady "See the events of the pod that the message names: `kubectl describe pod`. Correct the template.";
    /// A pod was evicted, and its replacement does not have the update revision. In a removal: it has the content again.
    417 ReplacementMissed "See `scpol explain` of the new pod: it names the reason.";
    /// The pod has the sidecar from the pod template of its owner, which decides what its replacement has.
    418 ContentOfOwner "Target the owner's kind instead of pods, or take the sidecar out of the owner: `scpol rollout remove`.";
    /// A ControllerRevision with the label of the policy is not one of its revisions: another policy owns it, or one that had
    /// the name before, or its name does not have the hash of its content. It is not used.
    419 RevisionForeign "Delete it, if it is not needed: `kubectl delete controllerrevision -n scpol-system NAME`. Only the operator writes revisions.";
    /// The flags of the operator do not allow the content of a stored revision any more. No workload gets it, and no rollout goes back to
    /// it. New workloads outside the steps of a rollout get the latest revision instead.
    420 RevisionRejected "None, if the flags are right: the next complete rollout replaces it. Else see `--allowed-images`, `--pod-security` and `--allow-in-templates`.";
    /// A pod of an earlier template is not ready, and its controller waits for it instead of replacing it: a StatefulSet with
    /// `podManagementPolicy: OrderedReady`, or a StatefulSet or DaemonSet with `updateStrategy: OnDelete`.
    421 PodKept "Delete the pod: the message has the command. Its controller then makes it from the current pod template.";
    /// Another client reverts the pod template, or the running pod, after each patch of a rollout.
    422 PutBack "Configure the client that the message names to keep unknown fields. Or opt the workload out: `scpol.dev/inject: \"false\"`. `scpol rollout resume POLICY` tries it again.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SCP{:04}", *self as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{MANAGED_BY, MANAGER};

    #[test]
    fn numbers_and_names_are_unique_and_every_code_has_a_meaning() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.to_string()), "{code} twice");
            assert!(seen.insert(code.name().to_owned()), "{} twice", code.name());
            assert!(!code.meaning().is_empty(), "{code} has no meaning");
        }
    }

    #[test]
    fn advice_names_the_label_that_registrations_have() {
        let named: Vec<&str> =
            Code::ALL.iter().map(|code| code.fix()).filter(|text| text.contains(MANAGED_BY)).collect();
        assert!(!named.is_empty() && named.iter().all(|text| text.contains(&format!("`{MANAGED_BY}: {MANAGER}`"))));
    }
}
