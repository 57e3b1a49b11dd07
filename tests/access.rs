//! Tests of the access of commands to a cluster: kubeconfigs, flags, proxies and credentials, against a small loopback
//! server that records its requests.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// The role of a loopback listener.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// An API server that has no policies.
    Server,
    /// An HTTP proxy that also acts as the server, for any requested address.
    Proxy,
    /// A proxy that rejects every tunnel.
    Closed,
    /// A socks5 proxy that also acts as the server.
    Socks,
    /// A server that never answers.
    Silent,
}

/// A listener, and its record: request heads, and target addresses of tunnels.
struct Listener {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    fn new(role: Role) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = heard.clone();
        std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                let told = told.clone();
                std::thread::spawn(move || drop(serve(stream, role, &told)));
            }
        });
        Self { port, heard }
    }

    fn heard(&self) -> String {
        self.heard.lock().unwrap().join("\n")
    }
}

fn serve(mut stream: TcpStream, role: Role, heard: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let tell = |text: String| heard.lock().unwrap().push(text);
    match role {
        Role::Server => {}
        Role::Proxy | Role::Closed => {
            tell(head(&mut stream)?);
            if role == Role::Closed {
                return stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        }
        Role::Socks => tell(handshake(&mut stream)?),
        Role::Silent => loop {
            tell(head(&mut stream)?);
        },
    }
    loop {
        let head = head(&mut stream)?;
        let path = head.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
        tell(head);
        let (status, body) = match path.as_str() {
            "/apis/scpol.dev/v1alpha1/sidecarpolicies" => {
                let policies =
                    r#"{"apiVersion":"scpol.dev/v1alpha1","kind":"SidecarPolicyList","metadata":{},"items":[]}"#;
                ("200 OK", policies.to_owned())
            }
            "/api/v1/namespaces/scpol-system/pods" => ("200 OK", replicas()),
            path if path.ends_with("a/log") => ("200 OK", log()),
            // An answer that never comes.
            "/api/v1/events" => return Ok(()),
            _ => ("404 Not Found", "not here".to_owned()),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
}

/// Two pods of the operator, with names as long as names may be.
fn replicas() -> String {
    let pod = |end: char| format!(r#"{{"metadata":{{"name":"{}{end}","namespace":"scpol-system"}}}}"#, "x".repeat(252));
    format!(r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{}},"items":[{},{}]}}"#, pod('a'), pod('b'))
}

/// A log of more than 1 MiB.
fn log() -> String {
    (0..50_000).map(|number| format!("{number:07} a line of the log at http://me:hunter2pw@host\n")).collect()
}

/// The head of a request. None of our requests has a body.
fn head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        bytes.extend(byte);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The target address that a client of socks5 (RFC 1928) requests.
fn handshake(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut take = |count: usize| {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).map(|()| bytes)
    };
    let count = take(2)?[1];
    let methods = take(count.into())?;
    // A client that offers a login must use it.
    let method = if methods.contains(&2) { 2 } else { 0 };
    stream.write_all(&[5, method])?;
    let mut user = String::new();
    if method == 2 {
        let mut take = |count: usize| {
            let mut bytes = vec![0; count];
            stream.read_exact(&mut bytes).map(|()| bytes)
        };
        let length = take(2)?[1];
        user = String::from_utf8_lossy(&take(length.into())?).into_owned();
        let length = take(1)?[0];
        user = format!("{user}:{}@", String::from_utf8_lossy(&take(length.into())?));
        stream.write_all(&[1, 0])?;
    }
    let mut take = |count: usize| {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).map(|()| bytes)
    };
    let length = take(5)?[4];
    let name = String::from_utf8_lossy(&take(length.into())?).into_owned();
    let port = take(2)?;
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    Ok(format!("socks {user}{name}:{}", u16::from_be_bytes([port[0], port[1]])))
}

/// A folder of one test, removed when the test ends.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn with(self, file: &str, text: &str) -> Self {
        fs::write(self.path(file), text).unwrap();
        self
    }

    fn program(self, file: &str, text: &str) -> Self {
        let folder = self.with(file, text);
        fs::set_permissions(folder.path(file), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    /// Runs `scpol` with `variables` as its only environment. Returns the exit code and all output.
    fn scpol(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .env_clear()
            .env("HOME", self.0.path())
            .env("PATH", "/usr/bin:/bin");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap_or(-1), text)
    }

    /// `scpol status` with the kubeconfig `config`.
    fn status(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
        self.scpol(&[&["status", "--kubeconfig", "config"], arguments].concat(), variables)
    }
}

/// A kubeconfig with one context and this cluster and user.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: one\n\
         contexts: [{{name: one, context: {{cluster: one, user: one}}}}]\n\
         clusters: [{{name: one, cluster: {{{cluster}}}}}]\n\
         users: [{{name: one, user: {{{user}}}}}]\n"
    )
}

fn with(cluster: &str, user: &str) -> Folder {
    Folder::new().with("config", &kubeconfig(cluster, user))
}

fn assert_fine((code, text): &(i32, String)) {
    assert_eq!(*code, 0, "{text}");
}

#[test]
fn a_proxy_of_the_kubeconfig_is_used_whatever_the_variables_say() {
    let proxy = Listener::new(Role::Proxy);
    let url = format!("http://name:p%40ss@127.0.0.1:{}", proxy.port);
    let folder = with(&format!("server: 'http://api.example.com:8080', proxy-url: '{url}'"), "");
    assert_fine(&folder.status(&[], &[("NO_PROXY", "*"), ("HTTP_PROXY", "http://127.0.0.1:1")]));
    let heard = proxy.heard();
    assert!(heard.starts_with("CONNECT api.example.com:8080 HTTP/1.1\r\n"), "{heard}");
    // name:p@ss
    assert!(heard.contains("Basic bmFtZTpwQHNz"), "{heard}");
    assert!(heard.contains("GET /apis/scpol.dev/v1alpha1/sidecarpolicies"), "{heard}");
}

#[test]
fn a_socks5_proxy_is_used_and_resolves_the_name_of_the_server() {
    for (url, user) in [("socks5://", ""), ("socks5h://", ""), ("socks5://jane:p%40ss@", "jane:p@ss@")] {
        let proxy = Listener::new(Role::Socks);
        let url = format!("{url}127.0.0.1:{}", proxy.port);
        let folder = with(&format!("server: 'http://api.example.com:8080', proxy-url: '{url}'"), "token: mine");
        assert_fine(&folder.status(&["--as", "jane"], &[]));
        let heard = proxy.heard();
        assert!(heard.starts_with(&format!("socks {user}api.example.com:8080\n")), "{heard}");
        let heard = heard.to_lowercase();
        assert!(heard.contains("bearer mine\r\n") && heard.contains("impersonate-user: jane\r\n"), "{heard}");
    }
}

#[test]
fn the_variables_name_a_proxy_unless_no_proxy_has_the_server_or_it_is_here() {
    let proxy = Listener::new(Role::Closed);
    let url = format!("http://127.0.0.1:{}", proxy.port);
    let folder = with("server: 'https://api.example.com:6443'", "");
    for variable in ["HTTPS_PROXY", "https_proxy"] {
        let (code, text) = folder.status(&[], &[(variable, &url)]);
        assert!(code == 2 && text.contains(&format!("by the proxy {url}")), "{text}");
        assert!(proxy.heard().starts_with("CONNECT api.example.com:6443 "), "{}", proxy.heard());
        proxy.heard.lock().unwrap().clear();
    }
    for no in ["api.example.com", ".example.com, ", "*.example.com:6443,", "*"] {
        let (code, text) = folder.status(&[], &[("HTTPS_PROXY", &url), ("NO_PROXY", no)]);
        assert!(code == 2 && !text.contains("proxy"), "NO_PROXY={no}: {text}");
    }
    let server = Listener::new(Role::Server);
    let here = with(&format!("server: 'http://127.0.0.1:{}'", server.port), "");
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        assert_fine(&here.status(&[], &[(variable, &url)]));
    }
    assert_eq!(proxy.heard(), "");
    let (code, text) = folder.status(&[], &[("HTTPS_PROXY", "socks4://proxy")]);
    assert!(
        code == 2 && text.contains("HTTPS_PROXY") && text.contains("`socks4`; expected http://HOST:PORT"),
        "{text}"
    );
}

#[test]
fn the_operator_goes_by_the_same_proxy() {
    let proxy = Listener::new(Role::Closed);
    let url = format!("http://127.0.0.1:{}", proxy.port);
    let folder = with("server: 'https://api.example.com:6443'", "");
    let mut operator = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args(["run", "--kubeconfig", "config", "--listen", "127.0.0.1:0", "--webhook-listen", "127.0.0.1:0"])
        .current_dir(&folder.0)
        .env("HTTPS_PROXY", &url)
        .env("NO_PROXY", "127.0.0.1,other.example.com")
        .stderr(fs::File::create(folder.path("log")).unwrap())
        .spawn()
        .unwrap();
    let reached = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        proxy.heard().contains("CONNECT api.example.com:6443 ")
    });
    // The command tries again every second, but reports the failure once.
    std::thread::sleep(Duration::from_secs(2));
    operator.kill().unwrap();
    operator.wait().unwrap();
    let log = fs::read_to_string(folder.path("log")).unwrap();
    assert!(reached, "{log}");
    assert_eq!(log.matches("The API server does not answer").count(), 1, "{log}");
    assert!(!log.contains("\"ERROR\"") && log.contains(&format!("by the proxy {url}")), "{log}");
}

#[test]
fn flags_say_which_server_and_who_we_are_there() {
    let server = Listener::new(Role::Server);
    let url = format!("http://127.0.0.1:{}", server.port);
    let folder = with("server: 'https://elsewhere.example.com'", "token: of-the-kubeconfig");
    let asked = |arguments: &[&str], variables: &[(&str, &str)]| {
        server.heard.lock().unwrap().clear();
        assert_fine(&folder.status(arguments, variables));
        server.heard().to_lowercase()
    };
    let heard = asked(&["--server", &url], &[]);
    assert!(heard.contains("authorization: bearer of-the-kubeconfig\r\n"), "{heard}");
    let heard = asked(&["-s", &url, "--token", "mine", "--as", "jane", "--as-group", "a,b", "--as-group", "c"], &[]);
    for header in [
        "authorization: bearer mine",
        "impersonate-user: jane",
        "impersonate-group: a",
        "impersonate-group: b",
        "impersonate-group: c",
    ] {
        assert!(heard.contains(&format!("{header}\r\n")), "{header}: {heard}");
    }
    assert!(asked(&[], &[("SCPOL_SERVER", &url), ("SCPOL_TOKEN", "theirs")]).contains("bearer theirs\r\n"));
    // Without any kubeconfig, an address is enough. An address without a scheme is plain HTTP.
    let address = format!("127.0.0.1:{}", server.port);
    assert_fine(&Folder::new().scpol(&["status", "--server", &address], &[]));
    let (code, text) = folder.status(&["--server", &url, "--as-group", "a"], &[]);
    assert!(code == 2 && text.contains("--as <NAME>"), "{text}");
}

#[test]
fn another_cluster_and_user_of_the_kubeconfig_are_chosen_and_what_is_not_there_is_told_with_what_is() {
    let server = Listener::new(Role::Server);
    let config = format!(
        "apiVersion: v1\nkind: Config\n\
         contexts: [{{name: one, context: {{cluster: away, user: nobody}}}}, {{name: two, context: {{cluster: gone}}}}]\n\
         clusters: [{{name: away, cluster: {{server: 'https://a.example.com'}}}}, {{name: here, cluster: {{server: 'http://127.0.0.1:{}'}}}}]\n\
         users: [{{name: jane, user: {{token: janes}}}}]\n",
        server.port
    );
    let folder = Folder::new().with("config", &config);
    assert_fine(&folder.status(&["--context", "one", "--cluster", "here", "--user", "jane"], &[]));
    assert!(server.heard().to_lowercase().contains("bearer janes\r\n"), "{}", server.heard());
    for (arguments, expected) in [
        (
            &[][..],
            "kubeconfig config cannot be used: it has no `current-context`; give `--context` with one of one, two\n",
        ),
        (&["--context", "three"], "it has no context `three`; expected one of one, two\n"),
        (&["--context", "two"], "it has no cluster `gone`; expected one of away, here\n"),
        (&["--context", "one", "--cluster", "there"], "it has no cluster `there`; expected one of away, here\n"),
        (&["--context", "one", "--user", "joe"], "it has no user `joe`; expected one of jane\n"),
        (
            &["--context", "one", "--server", "ftp://a"],
            "`ftp://a` is no address of a server; expected https://HOST:PORT\n",
        ),
    ] {
        let (code, text) = folder.status(arguments, &[]);
        assert!(code == 2 && text.ends_with(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn several_kubeconfigs_are_one_and_some_may_be_missing() {
    let server = Listener::new(Role::Server);
    let whole = kubeconfig(&format!("server: 'http://127.0.0.1:{}'", server.port), "token: a");
    let folder = Folder::new().with("b", &whole).with("other", &kubeconfig("server: 'https://other.example.com'", ""));
    assert_fine(&folder.scpol(&["status"], &[("KUBECONFIG", "gone:b::other")]));
    let (code, text) = folder.scpol(&["status"], &[("KUBECONFIG", "gone:lost")]);
    assert!(code == 2 && text.contains("KUBECONFIG names gone, lost, where there is no file"), "{text}");
    let (code, text) = folder.scpol(&["status"], &[("KUBECONFIG", "")]);
    assert!(
        code == 2 && text.contains("no kubeconfig found (looked at --kubeconfig, KUBECONFIG and ~/.kube/config)"),
        "{text}"
    );
}

#[test]
fn a_request_that_is_not_answered_ends_after_the_time_that_is_given() {
    let server = Listener::new(Role::Silent);
    let folder = with(&format!("server: 'http://127.0.0.1:{}'", server.port), "");
    let (code, text) = folder.status(&["--request-timeout", "1"], &[]);
    assert!(code == 2 && text.contains("no answer in 1s"), "{text}");
    let (code, text) = folder.status(&["--request-timeout", "soon"], &[]);
    assert!(code == 2 && text.contains("write it as 5s, 1m or 0"), "{text}");
}

const PLUGIN: &str = "{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: ./plugin";

#[test]
fn an_exec_plugin_gives_the_credentials_and_one_that_fails_is_told_in_its_words() {
    let server = Listener::new(Role::Server);
    let cluster = format!("server: 'http://127.0.0.1:{}'", server.port);
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"of-the-plugin"}}"#;
    let folder = with(&cluster, &format!("exec: {PLUGIN}}}"))
        .program("plugin", &format!("#!/bin/sh\necho once >> runs\necho '{credential}'\n"));
    assert_fine(&folder.status(&[], &[]));
    assert!(server.heard().to_lowercase().contains("bearer of-the-plugin\r\n"), "{}", server.heard());
    assert_eq!(fs::read_to_string(folder.path("runs")).unwrap(), "once\n", "it may ask its user something");
    let folder = folder.program("plugin", "#!/bin/sh\necho 'log in first' >&2\nexit 3\n");
    let (code, text) = folder.status(&[], &[]);
    assert!(
        code == 2 && text.contains("./plugin` of the kubeconfig gives no credentials: exit status: 3: log in first\n"),
        "{text}"
    );
    let missing = with(&cluster, &format!("exec: {PLUGIN}er, installHint: get it from example.com}}"));
    let (code, text) = missing.status(&[], &[]);
    assert!(code == 2 && text.contains("cannot be started: No such file or directory"), "{text}");
    assert!(text.ends_with("install it\nget it from example.com\n"), "{text}");
}

#[test]
fn auth_providers_work_or_say_what_has_taken_their_place() {
    let server = Listener::new(Role::Server);
    let cluster = format!("server: 'http://127.0.0.1:{}'", server.port);
    // {"exp":4102444800}
    let token = "e30.eyJleHAiOjQxMDI0NDQ4MDB9.x";
    let folder = with(&cluster, &format!("auth-provider: {{name: oidc, config: {{id-token: {token}}}}}"));
    assert_fine(&folder.status(&[], &[]));
    assert!(server.heard().contains(&format!("Bearer {token}\r\n")), "{}", server.heard());
    for (provider, expected) in [
        ("{name: gcp}", "install gke-gcloud-auth-plugin"),
        ("{name: gcp, config: {cmd-path: ./gone}}", "install gke-gcloud-auth-plugin"),
        ("{name: azure, config: {a: b}}", "run `kubelogin convert-kubeconfig`"),
        ("{name: other}", "use an exec plugin"),
        // {"exp":1}
        ("{name: oidc, config: {id-token: e30.eyJleHAiOjF9.x}}", "refreshing is not possible: missing field"),
    ] {
        let (code, text) = with(&cluster, &format!("auth-provider: {provider}")).status(&[], &[]);
        assert!(code == 2 && text.contains(expected), "{provider}: {text}");
    }
}

/// Checks that no part of an error longer than a few words occurs twice.
fn assert_once(text: &str) {
    let parts: Vec<&str> = text.trim().split(": ").filter(|part| part.len() > 12).collect();
    for (index, part) in parts.iter().enumerate() {
        assert!(!parts[..index].contains(part), "`{part}` is there twice: {text}");
    }
}

#[test]
fn errors_say_their_cause_once() {
    let server = "server: 'https://127.0.0.1:1'";
    let broken = [
        ("server: 'https://127.0.0.1:1', certificate-authority: gone", ""),
        ("server: 'https://127.0.0.1:1', certificate-authority-data: '%'", ""),
        ("server: 'https://127.0.0.1:1', certificate-authority-data: YQ==", ""),
        ("server: 'https://a b'", ""),
        ("proxy-url: 'http://x'", ""),
        (server, "client-certificate: gone, client-key: gone"),
        (server, "client-certificate-data: YQ==, client-key-data: YQ=="),
        (server, "client-certificate: config"),
        (server, "tokenFile: gone"),
        (server, "token: \"a\\nb\""),
        (server, "exec: {apiVersion: client.authentication.k8s.io/v1}"),
        (server, "auth-provider: {name: oidc, config: {id-token: a}}"),
        (server, ""),
        ("server: 'https://127.0.0.1:1', tls-server-name: 'a b'", ""),
        ("server: 'https://nowhere.invalid'", ""),
    ];
    for (cluster, user) in broken {
        let (code, text) = with(cluster, user).status(&[], &[]);
        assert_eq!(code, 2, "{cluster} {user}: {text}");
        assert_once(&text);
    }
    let folder = Folder::new().with("config", "a: [").with("list", "- a\n");
    for arguments in [
        &["--kubeconfig", "config"][..],
        &["--kubeconfig", "gone"],
        &["--kubeconfig", "list"],
        &["--context", "a"],
        &[],
    ] {
        for command in ["status", "check", "drain", "uninstall", "run"] {
            let (code, text) = folder.scpol(&[&[command], arguments].concat(), &[]);
            assert_eq!(code, 2, "{command} {arguments:?}: {text}");
            assert_once(&text);
        }
    }
    let server = Listener::new(Role::Server);
    let folder = with(&format!("server: 'http://127.0.0.1:{}'", server.port), "");
    let (code, text) = folder.scpol(&["check", "--kubeconfig", "config"], &[]);
    assert!(code == 2 && !text.contains(":  (404)"), "{text}");
}

#[test]
fn version_and_help_are_commands_as_for_kubectl() {
    let folder = Folder::new();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(folder.scpol(&["version", "--client"], &[]), (0, format!("scpol {version}\n")));
    let (code, text) = folder.scpol(&["version"], &[]);
    let noted = format!("scpol {version}\nnote: the version of the server is unknown: no kubeconfig found");
    assert!(code == 0 && text.starts_with(&noted), "{text}");
    let (code, text) = folder.scpol(&["version", "-o", "json"], &[]);
    assert!(code == 0 && text.contains(&format!("\"version\": \"{version}\"")), "{text}");
    let (code, text) = folder.scpol(&["help", "status"], &[]);
    assert!(code == 0 && text.contains("--request-timeout"), "{text}");
    let (_, short) = folder.scpol(&["status", "-h"], &[]);
    assert!(short.contains("--limit") && !short.contains("--context") && !short.contains("--pod-security"), "{short}");
    let (_, long) = folder.scpol(&["status", "--help"], &[]);
    let (_, cluster) = long.split_once("Cluster, as for kubectl:").unwrap();
    let (cluster, operator) = cluster.split_once("Operator, as for scpol run:").unwrap();
    assert!(!cluster.contains("--limit") && !cluster.contains("--protected-namespaces"), "{long}");
    assert!(
        operator.contains("--protected-namespaces") && operator.contains("Limits of templates, as for scpol run:"),
        "{long}"
    );
    let (_, all) = folder.scpol(&["help"], &[]);
    assert!(all.contains("\nOn a cluster:\n  check        Find what keeps"), "{all}");
    let (_, text) = folder.scpol(&["status", "--help"], &[("SCPOL_TOKEN", "secret")]);
    assert!(text.contains("--token") && !text.contains("secret"), "{text}");
}

#[test]
fn no_message_and_no_archive_has_the_password_of_a_servers_address() {
    let folder = Folder::new();
    let server = Listener::new(Role::Server);
    for (url, shown) in [
        ("http://admin:hunter2pw@127.0.0.1:1".to_owned(), "http://127.0.0.1:1 (--server)"),
        ("ftp://admin:hunter2pw@127.0.0.1:1".to_owned(), "`127.0.0.1:1` is no address"),
    ] {
        for command in [&["status"][..], &["support"]] {
            let (code, text) = folder.scpol(&[command, &["--server", &url]].concat(), &[]);
            assert!(code == 2 && text.contains(shown) && !text.contains("hunter2pw"), "{command:?}: {text}");
        }
    }
    assert!(!folder.path("scpol-support.tar.gz").exists(), "without a server there is no archive");
    // One request is not answered, and most are refused: the archive says so.
    let url = format!("http://admin:hunter2pw@127.0.0.1:{}", server.port);
    let (code, text) = folder.scpol(&["support", "--server", &url, "--request-timeout=3s"], &[]);
    assert!(code == 0 && text.contains("note: not in it: events.yaml: ") && !text.contains("hunter2pw"), "{text}");
    let path = folder.path("scpol-support.tar.gz");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let archive = Command::new("tar").arg("-xzOf").arg(path).output().unwrap();
    let archive = String::from_utf8(archive.stdout).unwrap();
    assert!(archive.contains("Not in it: events.yaml: the API server did not answer"), "{archive}");
    assert!(!archive.contains("127.0.0.1") && !archive.contains("hunter2pw"), "{archive}");
}

#[test]
fn an_archive_has_the_end_of_a_long_log_and_says_what_was_before() {
    let (folder, server) = (Folder::new(), Listener::new(Role::Server));
    let url = format!("http://127.0.0.1:{}", server.port);
    let (code, text) = folder.scpol(&["support", "--server", &url, "--request-timeout=30s"], &[]);
    assert_eq!(code, 0, "{text}");
    let tar = |flags| Command::new("tar").arg(flags).arg(folder.path("scpol-support.tar.gz")).output().unwrap().stdout;
    let names = String::from_utf8(tar("-tzf")).unwrap();
    let log = format!("pods/{}a/log.txt", "x".repeat(252));
    assert!(names.lines().any(|name| name == log), "{names}");
    let all = String::from_utf8(tar("-xzOf")).unwrap();
    assert!(all.contains("\n0049999 a line of the log at http://(redacted)@host\n") && !all.contains("0000000 a line"));
    assert!(all.len() < 2 << 20 && !all.contains("hunter2pw"));
    assert!(text.contains(&format!("note: not in it: {log}: the first ")), "{text}");
    assert!(text.contains("b/log.txt: ") && text.contains("b/metrics.txt: "), "{text}");
}
