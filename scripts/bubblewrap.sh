#!/usr/bin/env bash
# Installs bubblewrap, which the shell world's sandbox is made of, where that takes no question: with apt, as root or with
# sudo that asks for no password, and where the kernel lets it work. Elsewhere it says what to do. Never fails: without
# bubblewrap the tests that need a sandbox are left out. Part of `make test`.
set -uo pipefail

left_out() {
    echo "== bubblewrap: not installed, $1; the tests that need a sandbox are left out"
    exit 0
}

command -v bwrap >/dev/null && exit 0
by_hand="as root: apt-get install bubblewrap"
command -v apt-get >/dev/null || left_out "there is no apt-get here (install it with this system's packages)"
unshare --user --map-root-user true 2>/dev/null || left_out "the kernel allows no user namespaces here"
if [ "$(id -u)" = 0 ]; then
    as_root=()
elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    left_out "this is not root ($by_hand)"
fi

install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends bubblewrap
}
echo "== bubblewrap: installing it with apt"
{ install || { "${as_root[@]}" apt-get update && install; }; } >/dev/null 2>&1 || left_out "apt failed ($by_hand)"
