#!/usr/bin/env bash
# Puts two Vulkan adapters that need no GPU on a Debian machine: llvmpipe, installed, and SwiftShader, unpacked into
# target/software-adapters. What is there already is left alone. Commands run on both through tests/with-adapters.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/target/software-adapters

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
updated=
update() { [ -n "$updated" ] || as_root apt-get update -q; updated=yes; }

if ! dpkg -s mesa-vulkan-drivers libvulkan1 > /dev/null 2>&1; then
    update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        mesa-vulkan-drivers libvulkan1
fi

# Chromium carries SwiftShader; two files of its package are wanted, not a browser.
if [ ! -e "$folder/vk_swiftshader_icd.json" ]; then
    update
    mkdir -p "$folder/package"
    (cd "$folder/package" && apt-get -q -o APT::Sandbox::User=root download chromium-common && dpkg -x chromium-common_*.deb .)
    cp "$folder"/package/usr/lib/chromium/libvk_swiftshader.so "$folder"
    # The last file to appear says that all is there.
    cp "$folder"/package/usr/lib/chromium/vk_swiftshader_icd.json "$folder"
    rm -r "$folder/package"
fi
