//! Each field of a template, and what each reader of a pod does to the application because a policy adds it.
//!
//! `docs/readers.md` shows this table. A test fails if a field of a template has no row.

use crate::api::code::Code;

/// Who reads a pod, in the order of the cells.
pub const READERS: [&str; 8] = [
    "API server",
    "Admission plugins",
    "Scheduler",
    "Kubelet",
    "Job controller",
    "Horizontal autoscaler",
    "Vertical autoscaler",
    "Cluster autoscaler",
];

/// What a reader does to the application because of a field.
#[derive(Clone, Copy, Debug)]
pub enum Cell {
    /// It could stop the application: such a workload is not injected, with the code.
    Checked(&'static [Code]),
    /// It could stop or slow the application, which depends on more than template and workload: the code is told.
    Told(&'static [Code]),
    /// Nothing, for that reason.
    Harmless(&'static str),
}

use Cell::{Checked, Harmless, Told};

/// Fields with the same effects.
#[derive(Debug)]
pub struct Row {
    /// The fields in a few words.
    pub title: &'static str,
    /// The fields, as `Definition.field field ..; Definition.field ..`.
    pub fields: &'static str,
    /// A cell for each of [`READERS`].
    pub cells: [Cell; 8],
}

/// A part of a template.
#[derive(Debug)]
pub struct Part {
    pub title: &'static str,
    pub rows: &'static [Row],
}

const UNREAD: Cell = Harmless("does not read it");
const ALONE: Cell = Harmless("checked in the policy alone");
const OURS: Cell = Harmless("concerns the sidecar alone");
const DETAIL: Cell = Harmless("a detail of the field above it");
const NOT_ALLOWED: Cell = Harmless("the server takes no such field here");

/// Every field of a template.
pub const PARTS: [Part; 8] = [
    Part { title: "Containers and init containers", rows: &CONTAINERS },
    Part { title: "Security of containers", rows: &SECURITY },
    Part { title: "Probes and hooks", rows: &PROBES },
    Part { title: "Variables", rows: &VARIABLES },
    Part { title: "Volumes and mounts", rows: &VOLUMES },
    Part { title: "Metadata and pull secrets", rows: &METADATA },
    Part { title: "Fields of the pod", rows: &POD },
    Part { title: "What containers take from each other", rows: &TAKEN },
];

const CONTAINERS: [Row; 10] = [
    Row {
        title: "`name`",
        fields: "Container.name",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            Harmless("names are unique by then"),
            Told(&[Code::ExitCodesJudged]),
            Harmless("`ContainerResource` names the workload's own"),
            Told(&[Code::AutoscalerMisled]),
            UNREAD,
        ],
    },
    Row {
        title: "`image`, `imagePullPolicy`",
        fields: "Container.image imagePullPolicy",
        cells: [
            ALONE,
            Harmless("AlwaysPullImages treats all containers alike"),
            Harmless("prefers nodes with the image"),
            Told(&[Code::SidecarNotStarting]),
            Harmless("a pod that waits has not failed"),
            Harmless("leaves out pods that are not ready"),
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`command`, `args` and what belongs to them",
        fields: "Container.args command stdin stdinOnce terminationMessagePath terminationMessagePolicy tty workingDir",
        cells: [ALONE, UNREAD, UNREAD, OURS, Told(&[Code::ExitCodesJudged]), UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`restartPolicy`",
        fields: "Container.restartPolicy",
        cells: [
            Checked(&[Code::NativeSidecarsUnavailable]),
            UNREAD,
            Harmless("counts native sidecars with the containers"),
            Told(&[Code::HoldsApplication]),
            Checked(&[Code::JobSkipped]),
            Harmless("counts native sidecars with the containers"),
            Harmless("sizes native sidecars, too"),
            UNREAD,
        ],
    },
    Row {
        title: "`restartPolicyRules`",
        fields: "Container.restartPolicyRules; ContainerRestartRule.action exitCodes; \
                 ContainerRestartRuleOnExitCodes.operator values",
        cells: [
            ALONE,
            UNREAD,
            UNREAD,
            Told(&[Code::HoldsApplication]),
            Harmless("sees the last end only"),
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`ports`",
        fields: "Container.ports; ContainerPort.containerPort name protocol",
        cells: [
            Checked(&[Code::NameConflict]),
            Checked(&[Code::NamespaceForbids]),
            Harmless("reads host ports only"),
            Told(&[Code::SharedContainerPort, Code::SharedPortName]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`hostPort`",
        fields: "ContainerPort.hostIP hostPort",
        cells: [
            Checked(&[Code::NameConflict, Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            Told(&[Code::NodesLimited]),
            Harmless("checked by the scheduler before"),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("looks for nodes as the scheduler does"),
        ],
    },
    Row {
        title: "`resources`",
        fields: "Container.resources; ResourceRequirements.limits requests",
        cells: [
            Checked(&[Code::PodResourcesExceeded]),
            Checked(&[Code::AdmissionDenied, Code::QuotaExceeded]),
            Told(&[Code::RequestsMissing, Code::NodesLimited]),
            Told(&[Code::QualityOfServiceChanged, Code::HoldsApplication]),
            UNREAD,
            Told(&[Code::AutoscalerMisled]),
            Told(&[Code::AutoscalerMisled]),
            Harmless("adds nodes by requests, ours among them"),
        ],
    },
    Row {
        title: "`resources.claims`",
        fields: "ResourceRequirements.claims; ResourceClaim.name request",
        cells: [
            Checked(&[Code::ClaimMissing]),
            UNREAD,
            Harmless("places by the claims of the pod"),
            Harmless("prepares the claims of the pod"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`resizePolicy`",
        fields: "Container.resizePolicy; ContainerResizePolicy.resourceName restartPolicy",
        cells: [Checked(&[Code::PodFieldMismatch]), UNREAD, UNREAD, OURS, UNREAD, UNREAD, OURS, UNREAD],
    },
];

const SECURITY: [Row; 8] = [
    Row {
        title: "`runAsNonRoot`, `runAsUser`",
        fields: "Container.securityContext; SecurityContext.runAsNonRoot runAsUser",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Checked(&[Code::PodFieldMismatch, Code::NotStartable]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`runAsGroup`, `readOnlyRootFilesystem`",
        fields: "SecurityContext.readOnlyRootFilesystem runAsGroup",
        cells: [Checked(&[Code::PodFieldMismatch]), UNREAD, UNREAD, OURS, UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`privileged`, `capabilities` and what belongs to them",
        fields: "SecurityContext.allowPrivilegeEscalation capabilities privileged; Capabilities.add drop",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            OURS,
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`procMount`",
        fields: "SecurityContext.procMount",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            OURS,
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`appArmorProfile`",
        fields: "SecurityContext.appArmorProfile; AppArmorProfile.localhostProfile type",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Told(&[Code::NodesLimited]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`seccompProfile`",
        fields: "SecurityContext.seccompProfile; SeccompProfile.localhostProfile type",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Told(&[Code::SidecarNotStarting]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`seLinuxOptions`",
        fields: "SecurityContext.seLinuxOptions; SELinuxOptions.level role type user",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Harmless("needs a driver that mounts by label: unknown"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`windowsOptions`",
        fields: "SecurityContext.windowsOptions; WindowsSecurityContextOptions.gmsaCredentialSpec gmsaCredentialSpecName \
                 hostProcess runAsUserName",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Checked(&[Code::PodFieldMismatch, Code::NotStartable]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
];

const PROBES: [Row; 7] = [
    Row {
        title: "`readinessProbe`",
        fields: "Container.readinessProbe",
        cells: [
            ALONE,
            UNREAD,
            UNREAD,
            Told(&[Code::HoldsApplication]),
            Harmless("counts ready pods, and needs none"),
            Harmless("leaves out pods that are not ready"),
            UNREAD,
            Harmless("honours disruption budgets, which count ready pods"),
        ],
    },
    Row {
        title: "`startupProbe`",
        fields: "Container.startupProbe",
        cells: [ALONE, UNREAD, UNREAD, Told(&[Code::HoldsApplication]), UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`livenessProbe`",
        fields: "Container.livenessProbe",
        cells: [ALONE, UNREAD, UNREAD, OURS, Told(&[Code::ExitCodesJudged]), UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "how often, how long, how many",
        fields: "Probe.failureThreshold initialDelaySeconds periodSeconds successThreshold terminationGracePeriodSeconds \
                 timeoutSeconds",
        cells: [ALONE, UNREAD, UNREAD, DETAIL, UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "what is asked",
        fields: "Probe.exec grpc httpGet tcpSocket; LifecycleHandler.exec httpGet tcpSocket; ExecAction.command; \
                 GRPCAction.mode port service; HTTPGetAction.host httpHeaders path port protocol scheme; \
                 HTTPHeader.name value; TCPSocketAction.host port",
        cells: [ALONE, Checked(&[Code::NamespaceForbids]), UNREAD, DETAIL, UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`lifecycle`",
        fields: "Container.lifecycle; Lifecycle.postStart preStop; LifecycleHandler.sleep; SleepAction.seconds",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            UNREAD,
            UNREAD,
            Told(&[Code::HoldsApplication]),
            Harmless("waits for the grace period of the pod"),
            UNREAD,
            UNREAD,
            Harmless("waits for the grace period of the pod"),
        ],
    },
    Row {
        title: "`stopSignal`",
        fields: "Lifecycle.stopSignal",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            UNREAD,
            UNREAD,
            OURS,
            Told(&[Code::ExitCodesJudged]),
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
];

const VARIABLES: [Row; 7] = [
    Row {
        title: "`env`",
        fields: "Container.env; EnvVar.name value",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            Told(&[Code::VariableMayBeHidden, Code::LateReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`envFrom`",
        fields: "Container.envFrom; EnvFromSource.configMapRef prefix secretRef",
        cells: [
            Checked(&[Code::NameConflict]),
            Checked(&[Code::AdmissionDenied]),
            UNREAD,
            Harmless("by default the workload's own sources win"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`configMapKeyRef`",
        fields: "EnvVar.valueFrom; EnvVarSource.configMapKeyRef; ConfigMapKeySelector.key name optional; \
                 ConfigMapEnvSource.name optional",
        cells: [
            ALONE,
            UNREAD,
            UNREAD,
            Checked(&[Code::NotStartable, Code::NeedsReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`secretKeyRef`",
        fields: "EnvVarSource.secretKeyRef; SecretKeySelector.key name optional; SecretEnvSource.name optional",
        cells: [
            ALONE,
            Checked(&[Code::AdmissionDenied]),
            UNREAD,
            Checked(&[Code::NotStartable, Code::NeedsReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`fieldRef`",
        fields: "EnvVarSource.fieldRef; ObjectFieldSelector.apiVersion fieldPath",
        cells: [
            ALONE,
            UNREAD,
            UNREAD,
            Harmless("a missing label or annotation is empty"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`resourceFieldRef`",
        fields: "EnvVarSource.resourceFieldRef; ResourceFieldSelector.containerName divisor resource",
        cells: [
            ALONE,
            UNREAD,
            UNREAD,
            Harmless("without a limit it is that of the node"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`fileKeyRef`",
        fields: "EnvVarSource.fileKeyRef; FileKeySelector.key optional path volumeName",
        cells: [
            Checked(&[Code::PodFieldMismatch]),
            UNREAD,
            UNREAD,
            Harmless("the content of the file is known at run time"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
];

const VOLUMES: [Row; 14] = [
    Row {
        title: "`volumeMounts`",
        fields: "Container.volumeMounts; VolumeMount.bindMountOptions mountPath mountPropagation name readOnly \
                 recursiveReadOnly",
        cells: [
            Checked(&[Code::NameConflict, Code::VolumeMissing, Code::PodFieldMismatch]),
            UNREAD,
            UNREAD,
            Told(&[Code::NotStartable]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`subPath`, `subPathExpr`",
        fields: "VolumeMount.subPath subPathExpr",
        cells: [ALONE, UNREAD, UNREAD, Checked(&[Code::NotStartable]), UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`volumeDevices`",
        fields: "Container.volumeDevices; VolumeDevice.devicePath name",
        cells: [
            Checked(&[Code::VolumeMissing, Code::PodFieldMismatch]),
            UNREAD,
            UNREAD,
            OURS,
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`volumes[].name`",
        fields: "Volume.name",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
            Told(&[Code::ScaleDownBlocked]),
        ],
    },
    Row {
        title: "`emptyDir`",
        fields: "Volume.emptyDir; EmptyDirVolumeSource.medium mode sizeLimit",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            Told(&[Code::HoldsApplication]),
            UNREAD,
            UNREAD,
            UNREAD,
            Told(&[Code::ScaleDownBlocked]),
        ],
    },
    Row {
        title: "`hostPath`",
        fields: "Volume.hostPath; HostPathVolumeSource.path type",
        cells: [
            Checked(&[Code::NameConflict]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Told(&[Code::NodesLimited, Code::Deprecated]),
            UNREAD,
            UNREAD,
            UNREAD,
            Told(&[Code::ScaleDownBlocked]),
        ],
    },
    Row {
        title: "`configMap`",
        fields: "Volume.configMap; ConfigMapVolumeSource.defaultMode defaultUser items name optional; \
                 ConfigMapProjection.items name optional; KeyToPath.key mode path user",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            Checked(&[Code::NotStartable, Code::NeedsReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("no local storage"),
        ],
    },
    Row {
        title: "`secret`",
        fields: "Volume.secret; SecretVolumeSource.defaultMode defaultUser items optional secretName; \
                 SecretProjection.items name optional",
        cells: [
            Checked(&[Code::NameConflict]),
            Checked(&[Code::AdmissionDenied]),
            UNREAD,
            Checked(&[Code::NotStartable, Code::NeedsReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("no local storage"),
        ],
    },
    Row {
        title: "`downwardAPI`, `projected`",
        fields: "Volume.downwardAPI projected; DownwardAPIVolumeSource.defaultMode defaultUser items; \
                 DownwardAPIVolumeFile.fieldRef mode path resourceFieldRef user; DownwardAPIProjection.items; \
                 ProjectedVolumeSource.defaultMode defaultUser sources; VolumeProjection.clusterTrustBundle configMap \
                 downwardAPI podCertificate secret serviceAccountToken; ClusterTrustBundleProjection.labelSelector name \
                 optional path signerName user; PodCertificateProjection.certificateChainPath credentialBundlePath keyPath \
                 keyType maxExpirationSeconds signerName user userAnnotations; ServiceAccountTokenProjection.audience \
                 expirationSeconds path user",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            Told(&[Code::NeedsReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("no local storage"),
        ],
    },
    Row {
        title: "`persistentVolumeClaim`, `ephemeral`",
        fields: "Volume.ephemeral persistentVolumeClaim; PersistentVolumeClaimVolumeSource.claimName readOnly; \
                 EphemeralVolumeSource.readOnly volumeClaimTemplate; PersistentVolumeClaimTemplate.metadata spec; \
                 PersistentVolumeClaimSpec.accessModes dataSource dataSourceRef resources selector storageClassName \
                 volumeAttributesClassName volumeMode volumeName; TypedLocalObjectReference.apiGroup kind name; \
                 TypedObjectReference.apiGroup kind name namespace; VolumeResourceRequirements.limits requests; \
                 LabelSelector.matchExpressions matchLabels; LabelSelectorRequirement.key operator values",
        cells: [
            Checked(&[Code::NameConflict]),
            Harmless("the quota of storage changes with each create"),
            Told(&[Code::NodesLimited]),
            Told(&[Code::NeedsReference]),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("moves pods with their claims"),
        ],
    },
    Row {
        title: "`image`",
        fields: "Volume.image; ImageVolumeSource.pullPolicy reference",
        cells: [
            Checked(&[Code::NameConflict]),
            UNREAD,
            UNREAD,
            Harmless("as the image of a container"),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("no local storage"),
        ],
    },
    Row {
        title: "disks that one node may attach",
        fields: "Volume.awsElasticBlockStore azureDisk cinder fc gcePersistentDisk iscsi photonPersistentDisk \
                 portworxVolume rbd scaleIO storageos vsphereVolume; AWSElasticBlockStoreVolumeSource.fsType partition \
                 readOnly volumeID; AzureDiskVolumeSource.cachingMode diskName diskURI fsType kind readOnly; \
                 CinderVolumeSource.fsType readOnly secretRef volumeID; FCVolumeSource.fsType lun readOnly targetWWNs wwids; \
                 GCEPersistentDiskVolumeSource.fsType partition pdName readOnly; ISCSIVolumeSource.chapAuthDiscovery \
                 chapAuthSession fsType initiatorName iqn iscsiInterface lun portals readOnly secretRef targetPortal; \
                 PhotonPersistentDiskVolumeSource.fsType pdID; PortworxVolumeSource.fsType readOnly volumeID; \
                 RBDVolumeSource.fsType image keyring monitors pool readOnly secretRef user; ScaleIOVolumeSource.fsType \
                 gateway protectionDomain readOnly secretRef sslEnabled storageMode storagePool system volumeName; \
                 StorageOSVolumeSource.fsType readOnly secretRef volumeName volumeNamespace; \
                 VsphereVirtualDiskVolumeSource.fsType storagePolicyID storagePolicyName volumePath",
        cells: [
            Checked(&[Code::NameConflict]),
            Checked(&[Code::NamespaceForbids]),
            Told(&[Code::NodesLimited]),
            Told(&[Code::NodesLimited, Code::Deprecated]),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("no local storage"),
        ],
    },
    Row {
        title: "file systems of the network, drivers",
        fields: "Volume.azureFile cephfs csi flexVolume flocker gitRepo glusterfs nfs quobyte; \
                 AzureFileVolumeSource.readOnly secretName shareName; CephFSVolumeSource.monitors path readOnly secretFile \
                 secretRef user; CSIVolumeSource.driver fsType nodePublishSecretRef readOnly volumeAttributes; \
                 FlexVolumeSource.driver fsType options readOnly secretRef; FlockerVolumeSource.datasetName datasetUUID; \
                 GitRepoVolumeSource.directory repository revision; GlusterfsVolumeSource.endpoints path readOnly; \
                 NFSVolumeSource.path readOnly server; QuobyteVolumeSource.group readOnly registry tenant user volume",
        cells: [
            Checked(&[Code::NameConflict]),
            Checked(&[Code::NamespaceForbids]),
            Harmless("counts the volumes of a node only"),
            Harmless("known at the mount only"),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("no local storage"),
        ],
    },
    Row {
        title: "metadata of an ephemeral claim",
        fields: "ObjectMeta.annotations clusterName creationTimestamp deletionGracePeriodSeconds deletionTimestamp \
                 finalizers generateName generation initializers labels managedFields name namespace ownerReferences \
                 resourceVersion selfLink uid; Initializers.pending result; Initializer.name; Status.apiVersion code \
                 details kind message metadata reason status; StatusDetails.causes group kind name retryAfterSeconds uid; \
                 StatusCause.field message reason; ListMeta.continue remainingItemCount resourceVersion selfLink; \
                 ManagedFieldsEntry.apiVersion fields fieldsType fieldsV1 manager operation subresource time; \
                 OwnerReference.apiVersion blockOwnerDeletion controller kind name uid",
        cells: [NOT_ALLOWED, UNREAD, UNREAD, UNREAD, UNREAD, UNREAD, UNREAD, UNREAD],
    },
];

const METADATA: [Row; 3] = [
    Row {
        title: "`metadata.labels`",
        fields: "metadata.labels",
        cells: [
            Checked(&[Code::NameConflict, Code::SelectorMismatch]),
            UNREAD,
            Harmless("counts pods of the selectors of the workload"),
            UNREAD,
            Checked(&[Code::SelectorMismatch]),
            Harmless("selects pods by the labels of the workload"),
            Harmless("selects pods by the labels of the workload"),
            UNREAD,
        ],
    },
    Row {
        title: "`metadata.annotations`",
        fields: "metadata.annotations",
        cells: [
            Checked(&[Code::NameConflict, Code::AnnotationsTooLarge, Code::PodFieldMismatch]),
            Checked(&[Code::NamespaceForbids]),
            UNREAD,
            Told(&[Code::HoldsApplication, Code::Deprecated]),
            UNREAD,
            UNREAD,
            UNREAD,
            Told(&[Code::ScaleDownBlocked]),
        ],
    },
    Row {
        title: "`imagePullSecrets`",
        fields: "LocalObjectReference.name",
        cells: [
            Checked(&[Code::NameConflict]),
            Told(&[Code::PullSecretsReplaced, Code::PullSecretsLost]),
            UNREAD,
            Harmless("a Secret that is missing is passed over"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
];

/// The fields of `template.pod`.
const POD: [Row; 5] = [
    Row {
        title: "`pod.shareProcessNamespace`",
        fields: "PodFields.shareProcessNamespace",
        cells: [
            Checked(&[Code::PodSettingConflict]),
            Harmless("no level of Pod Security forbids it"),
            UNREAD,
            Harmless("needs a power: the application is no longer process 1"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`pod.hostAliases`",
        fields: "PodFields.hostAliases; HostAlias.hostnames ip",
        cells: [
            Checked(&[Code::PodSettingConflict]),
            UNREAD,
            UNREAD,
            Harmless("entries of the pod come first"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`pod.dnsConfig`",
        fields: "PodFields.dnsConfig; DnsConfig.nameservers options searches; DnsOption.name value",
        cells: [
            Checked(&[Code::PodSettingConflict]),
            UNREAD,
            UNREAD,
            Harmless("what is too much is left out, ours first"),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`pod.terminationGracePeriodSeconds`",
        fields: "PodFields.terminationGracePeriodSeconds; GracePeriod.atLeast",
        cells: [
            Checked(&[Code::PodSettingConflict]),
            UNREAD,
            UNREAD,
            Harmless("the application never has less than without us"),
            Harmless("waits for the end of the pod"),
            UNREAD,
            UNREAD,
            Harmless("waits no longer than its own limit"),
        ],
    },
    Row {
        title: "`pod.tolerations`",
        fields: "PodFields.tolerations; Toleration.effect key operator tolerationSeconds value",
        cells: [
            Checked(&[Code::PodSettingConflict]),
            Harmless("PodTolerationRestriction is off by default"),
            Harmless("more nodes fit, never fewer"),
            Harmless("takes more pods, never fewer"),
            UNREAD,
            UNREAD,
            UNREAD,
            Harmless("more nodes fit, never fewer"),
        ],
    },
];

/// What joins the application's own, and what a container of the template takes of it.
const TAKEN: [Row; 4] = [
    Row {
        title: "`appContainers`, `includeInitContainers`",
        fields: "Template.appContainers includeInitContainers",
        cells: [Told(&[Code::NoEffect]), UNREAD, UNREAD, UNREAD, UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`merge`, `separator`",
        fields: "EnvVar.merge separator",
        cells: [
            Checked(&[Code::VariableNotJoined]),
            UNREAD,
            UNREAD,
            Told(&[Code::MergedOverSources]),
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
    Row {
        title: "`share`",
        fields: "Share.from readOnly to",
        cells: [Checked(&[Code::SharedDiffers]), UNREAD, UNREAD, OURS, UNREAD, UNREAD, UNREAD, UNREAD],
    },
    Row {
        title: "`share[].volumeMounts`, `share[].env`",
        fields: "Share.env volumeMounts",
        cells: [
            Checked(&[Code::SharedDiffers]),
            UNREAD,
            Harmless("the volumes are those of the application"),
            OURS,
            UNREAD,
            UNREAD,
            UNREAD,
            UNREAD,
        ],
    },
];

impl Row {
    /// The fields, each as `Definition.field`.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.fields.split(';').flat_map(|group| {
            let (definition, fields) = group.trim().split_once('.').unwrap_or_default();
            fields.split_whitespace().map(move |field| format!("{definition}.{field}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod_schema;
    use crate::api::v1alpha1::{LISTS, OF_VARIABLES, Template, TemplateMetadata};
    use schemars::{JsonSchema, schema_for};
    use std::collections::BTreeSet;

    /// The fields of a template that no pod has, as `Definition.field`.
    fn own_fields() -> BTreeSet<String> {
        let schema = schema_for!(Template).to_value();
        let definitions = schema["$defs"].as_object().into_iter().flatten();
        // Its fields are those of the metadata of a pod.
        let definitions = definitions.filter(|(name, _)| **name != TemplateMetadata::schema_name());
        let root = ("Template".to_owned(), schema.clone());
        let all = definitions.map(|(name, schema)| (name.clone(), schema.clone())).chain([root]);
        let fields = all.flat_map(|(name, schema)| {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            properties.into_iter().map(move |(field, _)| (name.clone(), field))
        });
        // The fields of these are listed, one by one.
        let is_listed =
            |field: &str| LISTS.iter().any(|list| list.name == field) || ["metadata", "pod", "share"].contains(&field);
        let fields = fields.filter(|(name, field)| name != "Template" || !is_listed(field));
        let of_variables = OF_VARIABLES.iter().map(|field| format!("EnvVar.{field}"));
        fields.map(|(name, field)| format!("{name}.{field}")).chain(of_variables).collect()
    }

    #[test]
    fn every_field_of_a_template_has_one_row_and_no_cell_is_empty() {
        let rows = || PARTS.iter().flat_map(|part| part.rows);
        let mut named = BTreeSet::new();
        for name in rows().flat_map(Row::names) {
            assert!(named.insert(name.clone()), "{name} has two rows");
        }
        let fields: BTreeSet<String> = pod_schema::of_templates().into_iter().chain(own_fields()).collect();
        assert!(fields.len() > 400, "{}", fields.len());
        let missing: Vec<_> = fields.difference(&named).collect();
        assert!(missing.is_empty(), "add these to a row of the table, with what each reader does: {missing:?}");
        let gone: Vec<_> = named.difference(&fields).collect();
        assert!(gone.is_empty(), "no server has these fields: {gone:?}");
        for row in rows() {
            for (reader, cell) in READERS.iter().zip(&row.cells) {
                let is_empty = match cell {
                    Checked(codes) | Told(codes) => codes.is_empty(),
                    Harmless(why) => why.split_whitespace().count() < 2,
                };
                assert!(!is_empty, "{} x {reader}", row.title);
            }
        }
    }
}
