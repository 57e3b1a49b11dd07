# Images without a registry: one layer each, made here and imported into containerd. For inside.sh and what runs in a node.

# image NAME ROOT USER ENTRYPOINT CMD: an image of the folder ROOT, with ENTRYPOINT and CMD as JSON.
image() {
    local work=$NODE_DIR/images/work layer machine
    machine=$(uname -m)
    rm -rf "$work" && mkdir -p "$work"
    tar -C "$2" --owner=0 --group=0 --numeric-owner --sort=name -cf "$work/layer.tar" .
    layer=$(sha256sum "$work/layer.tar")
    cat > "$work/config.json" << J
{"architecture": "$(sed 's/x86_64/amd64/; s/aarch64/arm64/' <<< "$machine")", "os": "linux",
 "config": {"User": "$3", "Entrypoint": $4, "Cmd": $5, "Env": ["PATH=/bin:/usr/local/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:${layer%% *}"]}}
J
    printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$1" > "$work/manifest.json"
    tar -C "$work" -cf - manifest.json config.json layer.tar | ctr images import - >> "$NODE_DIR/log/ctr.log" 2>&1
}

# image_of_binary NAME BINARY: as the Dockerfile has it, the binary as /scpol and the libraries that it wants.
image_of_binary() {
    local root=$NODE_DIR/images/binary library
    rm -rf "$root" && mkdir -p "$root"
    cp "$2" "$root/scpol"
    for library in $(ldd "$2" | grep -o '/[^ ]*'); do
        mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"
    done
    image "$1" "$root" 65532:65532 '["/scpol"]' '["run"]'
}

# The images that samples/ and docs/examples name, as busybox with a script, and the one of every pod's sandbox.
stand_ins() {
    local root=$NODE_DIR/images/busybox name
    mkdir -p "$root"/{bin,tmp,etc/nginx/conf.d,usr/local/bin} && chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/"
    for name in $(/bin/busybox --list); do [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"; done
    printf 'server {\n    listen       80;\n}\n' > "$root/etc/nginx/conf.d/default.conf"
    cp "$here"/stand-ins/* "$root/usr/local/bin/"
    image pause:local "$root" '' '["tail", "-f", "/dev/null"]' '[]'
    image busybox:1.36 "$root" '' '[]' '["sh"]'
    # Of two names for one image a runtime may tell either, so each has its own.
    for name in nginx:1.8.1 nginx:1.12.2 nginx:1.27; do
        echo "$name" > "$root/etc/image"
        image "$name" "$root" '' '[]' '["nginx"]'
    done
    image fluent/fluent-bit:3.1 "$root" '' '["log-agent"]' '[]'
    image envoyproxy/envoy:v1.31.0 "$root" '' '["docker-entrypoint.sh"]' '["envoy"]'
}
