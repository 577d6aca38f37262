#!/usr/bin/env bash
# Installs bubblewrap, which the shell world's sandbox is made of, and uidmap, which its root file systems take, where that
# takes no question: with apt, as root or with sudo that asks for no password, and where the kernel lets them work. Root also
# gives nobody, whom its sandboxes act as, 65,536 ids for users in there, unless those are taken. Elsewhere it says what to
# do. Never fails: without them the tests that need a sandbox are left out. Part of `make test`.
set -uo pipefail

left_out() {
    echo "== bubblewrap: not installed, $1; the tests that need a sandbox are left out"
    exit 0
}

ids() {
    local given=""
    [ ! -e "${SUBUID:=/etc/subuid}" ] || given=$(<"$SUBUID")
    [ "$(id -u)" = 0 ] && command -v newuidmap usermod >/dev/null || return 0
    [[ $given == *nobody:* || $given == *:100000:* ]] && return 0
    echo "== bubblewrap: nobody is given the ids 100000 to 165535, for users in sandboxes"
    usermod --add-subuids 100000-165535 --add-subgids 100000-165535 nobody || true
}

wanted=()
command -v bwrap >/dev/null || wanted+=(bubblewrap)
command -v newuidmap >/dev/null || wanted+=(uidmap)
if [ ${#wanted[@]} = 0 ]; then
    ids
    exit 0
fi
by_hand="as root: apt-get install ${wanted[*]}"
command -v apt-get >/dev/null || left_out "there is no apt-get here (install ${wanted[*]} with this system's packages)"
unshare --user --map-root-user true 2>/dev/null || left_out "the kernel allows no user namespaces here"
if [ "$(id -u)" = 0 ]; then
    as_root=()
elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    left_out "this is not root ($by_hand)"
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${wanted[@]}"
}
echo "== bubblewrap: installing ${wanted[*]} with apt"
{ install || { "${as_root[@]}" apt-get update && install; }; } >/dev/null 2>&1 || left_out "apt failed ($by_hand)"
ids
