//! `scpol` as users run it.

use crate::engines::by;
use crate::prelude::*;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::Mutex;

crate::tests![
    drain_shows_everything_that_waits_and_clears_only_what_it_is_told_to,
    the_binary_is_a_plugin_of_kubectl,
    kubectl_completes_the_plugin,
    explain_tells_of_a_live_workload_what_every_stored_policy_does,
    explain_sums_up_the_workloads_of_a_kind_of_a_label_or_of_all_namespaces,
    diff_compares_the_stored_policies_with_new_ones_over_the_stored_workloads,
    explain_diff_and_status_read_what_each_engine_has_made,
    who_may_not_read_the_namespaces_that_a_policy_decides_by_is_not_told_that_nothing_changes,
    a_server_is_reached_by_a_proxy_and_as_somebody_else,
];

/// Runs `scpol` as an administrator. Returns the exit code and the output.
pub(crate) async fn scpol(cluster: &ControlPlane, arguments: &[&str]) -> Result<(i32, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(arguments)
        .env("KUBECONFIG", cluster.kubeconfig(User::Admin))
        .envs([timing_variable()])
        .output()
        .await?;
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((output.status.code().unwrap_or(-1), printed))
}

async fn drain_shows_everything_that_waits_and_clears_only_what_it_is_told_to() -> Result<()> {
    let world = World::new().await?;
    world.create_async(DEPLOYMENTS, &waiting("ours", &["a.scpol.dev"])).await?;
    world.create_async(DEPLOYMENTS, &waiting("mixed", &["x.other.io", "a.scpol.dev", "y.other.io"])).await?;
    world.create_async(DEPLOYMENTS, &waiting("foreign", &["x.other.io"])).await?;
    world.create_async(DEPLOYMENTS, &deployment("done")).await?;

    let (code, json) = scpol(&world.cluster, &["drain", "--list", "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&json)?;
    assert_eq!((code, report["apiVersion"].as_str()), (1, Some("cli.scpol.dev/v1alpha1")));
    let names: Vec<_> = report["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| item["name"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(names, ["foreign", "mixed", "ours"], "each once, though two groups serve Deployments");
    let (code, table) = scpol(&world.cluster, &["drain", "--list", "-n", "kube-system"]).await?;
    assert_eq!((code, table.trim()), (0, "Nothing waits for an initializer."));
    let (_, selected) = scpol(&world.cluster, &["drain", "--list", "-l", "app=ours"]).await?;
    assert!(selected.contains("ours") && !selected.contains("mixed"), "{selected}");
    let (_, names) = scpol(&world.cluster, &["drain", "--list", "-l", "app=ours", "-o", "name"]).await?;
    assert_eq!(names, "deployments.apps/ours\n");

    let (code, table) = scpol(&world.cluster, &["drain"]).await?;
    assert_eq!(code, 1, "foreign ones still wait: {table}");
    assert!(world.get(&path("ours")).await?.is_some_and(|object| object["metadata"].get("initializers").is_none()));
    assert_eq!(pending(&world.get(&path("mixed")).await?.unwrap_or_default()), ["x.other.io", "y.other.io"]);
    assert_eq!(pending(&world.get(&path("foreign")).await?.unwrap_or_default()), ["x.other.io"]);

    scpol(&world.cluster, &["drain", "--initializer", "x.other.io"]).await?;
    assert_eq!(pending(&world.get(&path("mixed")).await?.unwrap_or_default()), ["y.other.io"]);
    assert!(world.get(&path("foreign")).await?.is_some_and(|object| object["metadata"].get("initializers").is_none()));
    let (code, table) = scpol(&world.cluster, &["drain", "--initializer", "y.other.io"]).await?;
    assert_eq!(code, 0, "{table}");

    // A kind that the preferred version of its group lacks.
    let job = json!({ "template": { "spec": { "restartPolicy": "OnFailure", "containers": [{ "name": "app", "image": "x" }] } } });
    let cron = json!({
        "apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": { "name": "cron" },
        "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": job } },
    });
    let cron = waiting_for(cron, &["a.scpol.dev"]);
    world.create_async("/apis/batch/v1beta1/namespaces/default/cronjobs", &cron).await?;
    let (code, table) = scpol(&world.cluster, &["drain", "--list"]).await?;
    assert!(code == 1 && table.contains("cronjobs.batch"), "{code} {table}");

    drain_says_which_group_it_could_not_look_through(&world).await
}

/// A server behind this one does not answer, so `drain` cannot know what waits there.
async fn drain_says_which_group_it_could_not_look_through(world: &World) -> Result<()> {
    let away = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": "v1.away.example.org" },
        "spec": {
            "group": "away.example.org", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true, "service": { "namespace": "default", "name": "away" },
        },
    });
    request(&world.admin, "POST", "/apis/apiregistration.k8s.io/v1/apiservices", &away).await?;
    within(LIMIT, "its group is listed, and not served", || async {
        let is_listed = world.get("/apis").await?.unwrap_or_default().to_string().contains("away.example.org");
        let answer = request(&world.admin, "GET", "/apis/away.example.org/v1", &Value::Null).await;
        Ok(is_listed && matches!(answer, Err(kube::Error::Api(status)) if status.code == 503))
    })
    .await?;
    let (code, told) = scpol(&world.cluster, &["drain"]).await?;
    assert!(code == 2 && told.contains("cleared") && told.contains("away.example.org/v1"), "{code} {told}");
    let (code, told) = scpol(&world.cluster, &["drain"]).await?;
    assert!(code == 2 && !told.contains("Nothing waits for an initializer.\n"), "{code} {told}");
    Ok(())
}

async fn the_binary_is_a_plugin_of_kubectl() -> Result<()> {
    let world = World::new().await?;
    world.create_async(DEPLOYMENTS, &waiting("ours", &["a.scpol.dev"])).await?;
    let plugins = world.cluster.dir().join("plugins");
    std::fs::create_dir(&plugins)?;
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_scpol"), plugins.join("kubectl-scpol"))?;
    let mut kubectl = world.cluster.kubectl(User::Admin);
    let output = kubectl.env("PATH", &plugins).args(["scpol", "drain", "--list"]).output().await?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("a.scpol.dev"), "{output:?}");
    let mut kubectl = world.cluster.kubectl(User::Admin);
    let help = kubectl.env("PATH", &plugins).args(["scpol", "drain", "--help"]).output().await?;
    assert!(String::from_utf8_lossy(&help.stdout).contains("Usage: kubectl scpol drain"), "{help:?}");
    Ok(())
}

async fn kubectl_completes_the_plugin() -> Result<()> {
    let cluster = ControlPlane::builder(Version::NEWEST).start().await?;
    let plugins = cluster.dir().join("plugins");
    std::fs::create_dir(&plugins)?;
    for name in ["kubectl-scpol", "kubectl_complete-scpol"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_scpol"), plugins.join(name))?;
    }
    let mut kubectl = cluster.kubectl(User::Admin);
    let output = kubectl.env("PATH", &plugins).args(["__complete", "scpol", "unins"]).output().await?;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.starts_with("uninstall\t") && printed.ends_with("\n:4\n"), "{output:?}");
    Ok(())
}

async fn explain_tells_of_a_live_workload_what_every_stored_policy_does() -> Result<()> {
    let world = World::new().await?;
    let (code, none) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
    assert!(code == 2 && none.contains("there is no Deployment `web` in namespace `default`"), "{none}");
    // No operator completes the object, but it is visible anyway.
    world.create_async(DEPLOYMENTS, &waiting("web", &["all.scpol.dev"])).await?;
    let (code, none) = scpol(&world.cluster, &["explain", "deploy/web"]).await?;
    assert_eq!((code, none.trim()), (0, "Deployment default/web: there is no policy"));

    let template = json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] });
    let labels = json!({ "matchLabels": { "kubernetes.io/metadata.name": "default" } });
    world.policy("all", json!({ "namespaceSelector": labels, "template": template })).await?;
    world.policy("elsewhere", json!({ "namespaces": ["shop-*"], "template": template })).await?;
    let (code, table) = scpol(&world.cluster, &["explain", "Deployment", "web"]).await?;
    assert_eq!(code, 0, "{table}");
    assert!(table.starts_with("Deployment default/web: 1 of 2 policies injects: all\n"), "{table}");
    assert!(table.contains("adds container envoy") && table.contains("SCP0108"), "{table}");
    let (_, late) = {
        world.create(DEPLOYMENTS, &deployment("late")).await?;
        scpol(&world.cluster, &["explain", "deploy/late"]).await?
    };
    assert!(late.starts_with("Deployment default/late: it was created without all\n"), "{late}");
    assert!(late.contains("missed it") && late.contains("What runs is never changed"), "{late}");
    assert!(late.contains("all is not in effect: no operator has seen it"), "{late}");
    let (code, json) =
        scpol(&world.cluster, &["explain", "deployments.apps/web", "-n", "default", "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&json)?;
    assert_eq!((code, &report["items"][0]["policies"][1]["row"]), (0, &json!(7)));
    Ok(())
}

async fn explain_sums_up_the_workloads_of_a_kind_of_a_label_or_of_all_namespaces() -> Result<()> {
    let world = World::new().await?;
    let template = json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] });
    world.policy("all", json!({ "template": template })).await?;
    world.policy("pods", json!({ "targets": [{ "group": "", "resource": "pods" }], "template": template })).await?;
    let (code, none) = scpol(&world.cluster, &["explain", "deploy"]).await?;
    assert_eq!((code, none.trim()), (0, "no such workload in namespace `default`"));
    world.create_async(DEPLOYMENTS, &waiting("waits", &["all.scpol.dev"])).await?;
    world.create(DEPLOYMENTS, &deployment("missed")).await?;
    let mut out = deployment("opted-out");
    out["metadata"]["annotations"] = json!({ "scpol.dev/inject": "false" });
    world.create(DEPLOYMENTS, &out).await?;
    let elsewhere = "/apis/apps/v1/namespaces/kube-public/deployments";
    request(&world.admin, "POST", elsewhere, &deployment("elsewhere")).await?;

    let (code, table) = scpol(&world.cluster, &["explain", "deploy"]).await?;
    assert_eq!(code, 0, "{table}");
    assert!(table.starts_with("3 workloads: 1 to be injected, 1 missed, 1 injected in their pods\n"), "{table}");
    let row = |name: &str| {
        let line = table
            .lines()
            .find(|line| line.contains(&format!("default/{name} ")) && line.contains(" all "))
            .unwrap_or_default();
        line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("waits"), "all injects 8 - -", "{table}");
    assert_eq!(row("missed"), "all missed it 8 - -", "{table}");
    assert_eq!(row("opted-out"), "all skips it 5 SCP0105 OptedOut", "{table}");

    for (arguments, expected) in [
        (&["-A"][..], 4),
        (&["deployments", "-A"], 4),
        (&["-n", "kube-public"], 1),
        (&["-l", "app in (waits, missed)"], 2),
        (&["deploy", "-l", "app=elsewhere", "-A"], 1),
        (&["deploy/waits", "deploy/missed"], 2),
        (&["deploy,po", "-n", "default"], 3),
    ] {
        let (code, json) = scpol(&world.cluster, &[&["explain", "-o", "json"], arguments].concat()).await?;
        let report: Value = serde_json::from_str(&json)?;
        assert_eq!((code, report["items"].as_array().map(Vec::len)), (0, Some(expected)), "{arguments:?}: {json}");
    }
    for (arguments, says) in [
        (&[][..], "which workload? Name it (`deploy/web`)"),
        (&["deploy/waits", "-A"], "use -n instead of -A"),
        (&["deploy/waits", "-l", "a=b"], "by name or by labels, not by both"),
        (&["deploy/wait"], "did you mean `waits`?"),
        (&["deploy/elsewhere"], "there is one in `kube-public`: add `-n kube-public`"),
        (&["deploy/waits", "-n", "nowhere"], "there is one in `default`: add `-n default`"),
        (&["deploy/x", "-n", "nowhere"], "there is no such namespace"),
        (&["rs/waits"], "ask for that"),
        (&["-l", "a in b"], "cannot list deployments"),
    ] {
        let (code, printed) = scpol(&world.cluster, &[&["explain"], arguments].concat()).await?;
        assert!(code == 2 && printed.contains(says), "{arguments:?}: {code} {printed}");
    }
    Ok(())
}

async fn diff_compares_the_stored_policies_with_new_ones_over_the_stored_workloads() -> Result<()> {
    let world = World::new().await?;
    let file = world.policy_file("new", &sidecar("envoy"))?;
    let diff = ["diff", "--new", &file];
    let (code, none) = scpol(&world.cluster, &diff).await?;
    assert_eq!((code, none.trim()), (0, "0 workloads: nothing changes"));

    world.create_async(DEPLOYMENTS, &waiting("web", &["a.scpol.dev"])).await?;
    world.create_async(DEPLOYMENTS, &deployment("api")).await?;
    let (code, table) = scpol(&world.cluster, &diff).await?;
    assert!(code == 1 && table.starts_with("2 workloads: 2 gain\n"), "{code} {table}");
    let (code, table) = scpol(&world.cluster, &[&diff[..], &["-n", "kube-public"]].concat()).await?;
    assert_eq!((code, table.trim()), (0, "0 workloads: nothing changes"));

    // A stored policy of another name stays; one of the same name is replaced.
    let labels = json!({ "matchLabels": { "kubernetes.io/metadata.name": "default" } });
    let others = json!({ "containers": [{ "name": "log", "image": "log:1" }] });
    world.policy("other", json!({ "namespaceSelector": labels, "template": others })).await?;
    world.policy("new", sidecar_of("envoy", "envoy:0")).await?;
    let (code, json) = scpol(&world.cluster, &[&diff[..], &["-A", "-o", "json"]].concat()).await?;
    let report: Value = serde_json::from_str(&json)?;
    assert_eq!(
        (code, &report["change"], &report["lose"], &report["gain"]),
        (1, &json!(2), &json!(0), &json!(0)),
        "{json}"
    );
    assert_eq!(report["items"][0]["changes"][0]["policy"], "new", "{json}");
    Ok(())
}

async fn explain_diff_and_status_read_what_each_engine_has_made() -> Result<()> {
    const REGISTERED: [(Version, &str, &[&str], &str); 4] = [
        (Version::V1_13, "Initializer", &["initializerconfigurations"], "scpol-envoy"),
        (Version::V1_13, "Webhook", &["mutatingwebhookconfigurations"], "scpol-deployments.apps"),
        (Version::NEWEST, "Webhook", &["mutatingwebhookconfigurations"], "scpol-deployments.apps"),
        (
            Version::NEWEST,
            "MutatingAdmissionPolicy",
            &["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
            "scpol-deployments.apps",
        ),
    ];
    for (version, engine, resources, name) in REGISTERED {
        let (world, _operator) = World::with(ControlPlane::builder(version)).await?.operated(&[]).await?;
        world.create_promptly(DEPLOYMENTS, &deployment("before")).await?;
        world.enforce("envoy", by(engine, sidecar("envoy"))).await?;
        world.create_promptly(DEPLOYMENTS, &deployment("after")).await?;
        for (name, says) in
            [("after", "nothing to add; in it already: envoy"), ("before", "it was created without envoy")]
        {
            let (code, told) = scpol(&world.cluster, &["explain", &format!("deploy/{name}")]).await?;
            assert_eq!(
                (code, told.lines().next()),
                (0, Some(&*format!("Deployment default/{name}: {says}"))),
                "{engine}"
            );
        }
        let mut edited = by(engine, sidecar("envoy"));
        let diff = async |edited: &Value| {
            scpol(&world.cluster, &["diff", "--new", &world.policy_file("envoy", edited)?]).await
        };
        let (code, told) = diff(&edited).await?;
        assert_eq!((code, told.lines().next()), (0, Some("2 workloads: nothing changes")), "{engine}");
        edited["template"]["containers"][0]["image"] = json!("envoy:2");
        let (code, told) = diff(&edited).await?;
        assert_eq!((code, told.lines().next()), (1, Some("2 workloads: 2 change")), "{engine}");

        let (code, told) = scpol(&world.cluster, &["status", "envoy", "-o", "json"]).await?;
        let told: Value = serde_json::from_str(&told)?;
        let registered = resources.iter().map(|resource| json!({ "resource": resource, "name": name, "found": true }));
        let registered: Vec<_> = registered.collect();
        assert_eq!((code, &told["engine"], &told["registrations"]), (1, &json!(engine), &json!(registered)));
        let sums = json!({ "resource": "deployments.apps", "matched": 2, "injected": 1, "edited": 0, "outdated": 0, "missed": 1, "failed": 0, "pending": 0, "unknown": 0 });
        assert_eq!(told["targets"], json!([sums]), "{engine}");
        assert_eq!(told["workloads"][0]["name"], "before", "{engine}");
    }
    Ok(())
}

async fn who_may_not_read_the_namespaces_that_a_policy_decides_by_is_not_told_that_nothing_changes() -> Result<()> {
    let world = World::new().await?;
    // All rights that the commands need, except on Namespaces.
    let workloads = ["deployments", "statefulsets", "daemonsets", "cronjobs", "jobs", "pods"];
    let registered = ["initializerconfigurations", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    let resources = [&workloads[..], &registered[..], &["sidecarpolicies", "nodes"]].concat();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "reader" },
        "rules": [{ "apiGroups": ["*"], "resources": resources, "verbs": ["get", "list"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": User::Bystander.name() }],
    });
    world
        .cluster
        .apply_manifests(&json!({ "apiVersion": "v1", "kind": "List", "items": [role, binding] }).to_string())
        .await?;
    world.create_async(DEPLOYMENTS, &deployment("web")).await?;
    let kubeconfig = world.cluster.kubeconfig(User::Bystander);
    let kubeconfig = kubeconfig.to_str().context("a path in UTF-8")?;
    let template = sidecar("envoy")["template"].clone();
    let file = world.policy_file("new", &sidecar("envoy"))?;
    let diff = ["diff", "--kubeconfig", kubeconfig, "--new", &file];
    let (code, told) = scpol(&world.cluster, &diff).await?;
    assert!(code == 1 && told.starts_with("1 workload: 1 gains"), "nobody asks for a Namespace: {code} {told}");
    let labels = json!({ "matchLabels": { "team": "shop" } });
    world.policy_file("new", &json!({ "template": template, "namespaceSelector": labels }))?;
    let (code, told) = scpol(&world.cluster, &diff).await?;
    assert!(code == 2 && told.contains("cannot read the Namespaces, which a policy decides by"), "{code} {told}");
    world.policy("stored", json!({ "template": template, "namespaceSelector": labels })).await?;
    let (code, told) = scpol(&world.cluster, &["status", "stored", "--kubeconfig", kubeconfig]).await?;
    assert!(code == 2 && told.contains("cannot read the Namespaces, which a policy decides by"), "{code} {told}");
    Ok(())
}

/// An HTTP proxy that connects to any requested address. Returns its address and the list of requests.
async fn proxy() -> Result<(String, Arc<Mutex<Vec<String>>>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let told = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let told = told.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await?);
                }
                let target = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
                told.lock().await.push(target.clone());
                let mut server = TcpStream::connect(target).await?;
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    Ok((address, asked))
}

async fn a_server_is_reached_by_a_proxy_and_as_somebody_else() -> Result<()> {
    let world = World::new().await?;
    let (address, asked) = proxy().await?;
    let text = std::fs::read_to_string(world.cluster.kubeconfig(User::Admin))?;
    let mut kubeconfig: Value = serde_saphyr::from_str(&text)?;
    kubeconfig["clusters"][0]["cluster"]["proxy-url"] = json!(address);
    let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str().context("a server")?.to_owned();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("config").display().to_string();
    std::fs::write(&file, kubeconfig.to_string())?;

    let (code, printed) = scpol(&world.cluster, &["status", "--kubeconfig", &file]).await?;
    assert_eq!(code, 0, "{printed}");
    let wanted = server.trim_start_matches("https://").to_owned();
    let asked = asked.lock().await;
    assert!(asked.iter().all(|target| *target == wanted) && !asked.is_empty(), "{asked:?}");
    let (code, printed) = scpol(&world.cluster, &["status", "--as", "jane"]).await?;
    assert!(code == 2 && printed.contains("User \"jane\" cannot list"), "{printed}");
    let (code, printed) = scpol(&world.cluster, &["status", "--as", "jane", "--as-group", "system:masters"]).await?;
    assert_eq!(code, 0, "{printed}");
    // The token replaces the certificate of the administrator.
    let (code, printed) = scpol(&world.cluster, &["status", "--token", "none", "--request-timeout", "5s"]).await?;
    assert!(code == 2 && printed.contains("401"), "{printed}");
    std::fs::write(&file, "{}")?;
    let arguments =
        ["status", "--kubeconfig", &file, "--server", &server, "--insecure-skip-tls-verify", "--token", "none"];
    let (code, printed) = scpol(&world.cluster, &arguments).await?;
    assert!(code == 2 && printed.contains("401"), "{printed}");
    let (code, printed) = scpol(&world.cluster, &arguments[..5]).await?;
    assert!(code == 2 && printed.contains("certificate"), "{printed}");
    Ok(())
}
