# The cgroups of a node, for node.sh (outside) and inside.sh. The node gets a cgroup below the caller's own in every hierarchy, and a
# cgroup namespace makes it the root, so that /kubepods of the kubelet is inside it.

# Hierarchies of version 1, such as `cpu,cpuacct` and `name=systemd`, one a line. None: the machine has version 2.
# The kubelet wants all hierarchies of /proc/self/cgroup to be mounted, even `name=systemd`.
cgroup_hierarchies() { cut -d: -f2 /proc/self/cgroup | grep . || true; }

# The folders that hold the nodes' cgroups: on version 1 the caller's cgroup in every hierarchy, on version 2 the root.
# On version 2 a cgroup with processes cannot have children with controllers, unless it is the root.
cgroup_parents() {
    local names
    [ -n "$(cgroup_hierarchies)" ] || echo /sys/fs/cgroup
    for names in $(cgroup_hierarchies); do
        echo "/sys/fs/cgroup/${names#name=}$(sed -n "s/^[0-9]*:$names://p" /proc/self/cgroup | sed 's:/$::')"
    done
}
cgroups_named() { # pattern
    local parent
    for parent in $(cgroup_parents); do find "$parent" -maxdepth 1 -type d -name "$1"; done
}
cgroup_remove() { find "$1" -depth -type d -exec rmdir {} + 2> /dev/null || true; }

# Version 2: has a cgroup hand on to its children all that a node wants to control.
cgroup2_delegate() { # folder
    local controller
    for controller in cpu cpuset memory pids io hugetlb; do
        ! grep -qw "$controller" "$1/cgroup.controllers" || echo "+$controller" > "$1/cgroup.subtree_control"
    done
}
# In a container /sys/fs/cgroup is no real root: then the processes in it move into a child first, as Docker in Docker has it.
cgroup2_prepare() {
    local root=/sys/fs/cgroup pid
    if [ -e "$root/cgroup.type" ] && [ -n "$(cat "$root/cgroup.procs")" ]; then
        mkdir -p "$root/outside"
        for pid in $(cat "$root/cgroup.procs"); do echo "$pid" > "$root/outside/cgroup.procs" || true; done 2> /dev/null
    fi
    cgroup2_delegate "$root"
}
cgroups_make() { # name
    local parent file
    [ -n "$(cgroup_hierarchies)" ] || cgroup2_prepare
    for parent in $(cgroup_parents); do
        mkdir "$parent/$1"
        # Of version 1: a new cpuset is empty, and an empty one takes no process.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$parent/$file" ] || [ ! -w "$parent/$1/$file" ] || cat "$parent/$file" > "$parent/$1/$file"
        done
    done
}
cgroups_enter() { # name
    local dir
    for dir in $(cgroups_named "$1"); do echo "$BASHPID" > "$dir/cgroup.procs"; done
}

# For the process that has entered, and is in a cgroup namespace. Version 2: it moves on into a child, so that the root of the namespace
# has no process, and can hand on controllers.
cgroups_settle() { # name
    [ -z "$(cgroup_hierarchies)" ] || return 0
    mkdir "/sys/fs/cgroup/$1/node"
    echo "$BASHPID" > "/sys/fs/cgroup/$1/node/cgroup.procs"
}

# Inside the namespaces: mounts the hierarchies again, with the node's cgroup as their root.
cgroups_mount() {
    local names
    if [ -z "$(cgroup_hierarchies)" ]; then
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        cgroup2_delegate /sys/fs/cgroup
        return
    fi
    mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
    for names in $(cgroup_hierarchies); do
        mkdir "/sys/fs/cgroup/${names#name=}"
        mount -t cgroup -o "${names/#name=/none,name=}" cgroup "/sys/fs/cgroup/${names#name=}"
    done
}
