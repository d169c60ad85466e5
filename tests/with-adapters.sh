#!/usr/bin/env bash
# Runs a command with SwiftShader beside the machine's own Vulkan adapters, and makes a test that finds none fail:
#     bash tests/with-adapters.sh cargo test --release
# tests/setup.sh comes first.
set -euo pipefail
folder=$(cd "$(dirname "$0")/.." && pwd)/target/software-adapters
icd=$folder/vk_swiftshader_icd.json
if [ ! -e "$icd" ]; then
    echo "no $icd: run tests/setup.sh first" >&2
    exit 2
fi
export VK_ADD_DRIVER_FILES=$icd${VK_ADD_DRIVER_FILES:+:$VK_ADD_DRIVER_FILES}
export SAMEBITS_REQUIRE_GPU=1
# Mesa complains on every start when there is none.
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then
    mkdir -p -m 700 "$folder/runtime"
    export XDG_RUNTIME_DIR=$folder/runtime
fi
exec "$@"
