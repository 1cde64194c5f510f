#!/usr/bin/env bash
# A real SGLang engine on a GPU, on a machine that has torch but reaches no registry.
#
#     bash tests/gpu/sglang.sh WHEELS OUT PART...
#
# WHEELS: folder with wheels of what the machine lacks for Milepost. OUT: folder for logs. Run in the
# repository's root, with SGLANG_SITE naming the folders of SGLang and what it stands on (as in
# PYTHONPATH), and SGLANG_SITE_OLD those of the older release. Parts:
#
#     contract   the suite that every kind of engine passes
#     old        the same with the older release
#     speed      tokens/s beside the bare server, publication pauses, memory, log-probs: JSON lines
#     pauses     the publications of `speed` alone
#     run        rollout, sessions, engine and trainer in one job on one GPU
#     taught     a run that learns: warm-up, then the recipe `lookup` with a model of the quick start's size
#     colocated  the same as `run`, synchronous, the engine's cache giving its memory back while training
#     two        publications and a run with the trainer on the second GPU, over NCCL
#     ranks      the suite against a server of two tensor-parallel ranks and one of two data-parallel
#                ones, at the same time on two GPUs
#     attention  the same for two data-parallel ranks inside of two tensor-parallel ones
#     stages     the same for two stages of a pipeline
#     drafts     speculative decoding with drafts from n-grams
set -u
wheels=$1 out=$2; shift 2
site=/tmp/milepost-site
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site "$wheels"/*.whl || exit 1
export PYTHONPATH=$site OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
python3 -m pip install -q --no-index --no-deps --no-build-isolation --no-compile --no-cache-dir --upgrade --target $site . || exit 1
root=$PWD
export PYTHONPATH=$site:$root/tests
MILEPOST_SGLANG_PYTHON=$(command -v python3)
# What the pruned kernels need (SGLang's stand-ins for flashinfer, its prebuilt kernels).
MILEPOST_SGLANG_ENVIRONMENT='{"PYTHONPATH": "'$SGLANG_SITE'", "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
  "TVM_FFI_CACHE_DIR": "/tmp/sg/jit", "TVM_FFI_GPU_BACKEND": "cuda", "SGLANG_JIT_CACHE_DIR": "/tmp/sg/jit21",
  "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}'
MILEPOST_SGLANG_OPTIONS='{"attention-backend": "fa3", "disable-prefill-cuda-graph": true, "cuda-graph-max-bs-decode": 256}'
export MILEPOST_SGLANG_PYTHON MILEPOST_SGLANG_ENVIRONMENT MILEPOST_SGLANG_OPTIONS
# NVLink multicast stays off where GPUs are shared.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

suite() {
  timeout 280 env MILEPOST_ENGINE_DEVICE=cuda "$2" python3 -P -m pytest -q -p no:cacheprovider -k "$1" tests/contract 2>&1 |
    tee "$out/contract-$1.log" | tail -45 | cut -c1-400
}
old() { suite sglang-old "MILEPOST_SGLANG_OLD=${SGLANG_SITE_OLD:-}"; }
contract() { suite sglang A=; }

# Both servers on both GPUs, side by side: none of the two is measured.
ranks() {
  export SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=false
  options=$MILEPOST_SGLANG_OPTIONS
  ranked tp '"tp-size": 2, "disable-custom-all-reduce": true' tensors &
  ranked dp '"dp-size": 2' disk &
  wait
  told tp dp
}
attention() { alone attention '"tp-size": 2, "dp-size": 2, "enable-dp-attention": true, "disable-custom-all-reduce": true' " and not adapter"; }
stages() { alone stages '"pp-size": 2'; }
alone() {
  export SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=false
  options=$MILEPOST_SGLANG_OPTIONS
  ranked "$1" "$2" tensors "${3:-}"
  told "$1"
}
told() {
  for name in "$@"; do
    echo "== ranks, $name"
    tail -45 "$out/ranks-$name.log" | cut -c1-400
  done
}
ranked() {
  MILEPOST_SGLANG_OPTIONS=${options/"{"/"{$2, "} MILEPOST_SGLANG_UPDATE=$3 MILEPOST_ENGINE_DEVICE=cuda \
    timeout 280 python3 -P -m pytest -q -p no:cacheprovider -k "sglang and not distributed${4:-}" tests/contract \
    > "$out/ranks-$1.log" 2>&1
}

drafts() {
  MILEPOST_ENGINE_DEVICE=cuda timeout 250 python3 -P -m pytest -q -p no:cacheprovider tests/gpu/test_sglang_drafts.py 2>&1 |
    tee "$out/drafts.log" | tail -60 | cut -c1-400
}

speed() {
  timeout 290 python3 -P tests/gpu/sglang_speed.py 2>"$out/speed.err" | tee "$out/speed.jsonl"
  tail -5 "$out/speed.err"
}

pauses() {
  timeout 200 python3 -P tests/gpu/sglang_speed.py publications 2>"$out/pauses.err" | tee "$out/pauses.jsonl"
  tail -5 "$out/pauses.err"
}

# The quick start's task with Qwen3-0.6B's layers, fresh weights: what is measured is the machinery.
learn() {
  name=$1; shift
  cd /tmp
  timeout 270 python3 -P "$root/tests/gpu/sglang_run.py" "/tmp/run-$name" "$@" > "$out/run-$name.log" 2>&1
  echo "== run $name: exit $?"
  tail -12 "$out/run-$name.log"
  tail -25 "/tmp/run-$name/logs/engine-0.server.log" > "$out/run-$name.server.log" 2>/dev/null
  cp "/tmp/run-$name/metrics.jsonl" "$out/run-$name.metrics.jsonl" 2>/dev/null
  cd "$root"
}

taught() { learn taught --engine cuda:0 --trainer cuda:0 --update tensors --taught; }

run() { learn one --engine cuda:0 --trainer cuda:0 --update tensors; }

colocated() {
  preload=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0] + "/cu13/lib")')
  MILEPOST_SGLANG_ENVIRONMENT=${MILEPOST_SGLANG_ENVIRONMENT/"{"/"{\"LD_LIBRARY_PATH\": \"$preload\", "} \
    learn colocated --engine cuda:0 --trainer cuda:0 --update tensors --colocated
}

two() {
  MILEPOST_UPDATES=distributed MILEPOST_STAGING=cuda:1 timeout 200 python3 -P tests/gpu/sglang_speed.py publications \
    2>"$out/two.err" | tee "$out/two.jsonl"
  tail -5 "$out/two.err"
  learn two --engine cuda:0 --trainer cuda:1 --update distributed
}

python3 -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_name())'
for part in "$@"; do
  started=$SECONDS
  "$part"
  echo "== $part took $((SECONDS - started)) s"
done
