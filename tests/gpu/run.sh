#!/usr/bin/env bash
# Everything that wants a GPU, on a machine that has torch and transformers but reaches no registry.
#
#     bash tests/gpu/run.sh WHEELS OUT [PARTS]
#
# WHEELS: folder with wheels of what the machine lacks. OUT: folder for logs. PARTS: some of "tests ipc speed cuda cpu",
# the last two a quick start on that device; ipc: the way of weights within one GPU, tests of it and quick starts with
# it and without. Run in the repository's root.
set -u
wheels=$1 out=$2 parts=${3:-tests ipc speed cuda cpu} site=/tmp/milepost-site
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site "$wheels"/*.whl || exit 1
export PYTHONPATH=$site OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
python3 -m pip install -q --no-index --no-deps --no-build-isolation --no-compile --no-cache-dir --upgrade --target $site . || exit 1
milepost() { python3 -P -c 'import sys; from milepost.launch.cli import main; sys.exit(main())' "$@"; }
cd /tmp || exit 1
root=$OLDPWD
python3 -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_name())'
[[ " $parts " != *" tests "* ]] || (cd "$root" && timeout 200 python3 -P -m pytest -q -p no:cacheprovider -m gpu -s tests/gpu --ignore tests/gpu/test_ipc_cuda.py 2>&1 | tee "$out/gpu-tests.log" | tail -60)
if [[ " $parts " == *" ipc "* ]]; then
  (cd "$root" && timeout 300 python3 -P -m pytest -q -p no:cacheprovider -m gpu -s tests/gpu/test_ipc_cuda.py 2>&1 | tee "$out/gpu-ipc.log" | tail -60)
  for way in always never; do
    timeout 150 env MILEPOST_CACHE=/tmp/milepost-cache bash -c "$(declare -f milepost); milepost run lookup --plain --out /tmp/run-ipc-$way \
      --set actors.engine.device=cuda:0 --set actors.trainer.device=cuda:0 --set run.steps=12 --set actors.publisher.cuda_ipc=$way \
      --set actors.publisher.check_weight_update_equal=true" > "$out/run-ipc-$way.log" 2>&1
    echo "== lookup with cuda_ipc = $way: exit $?"
    grep -E 'ready after|evaluation:|steps in|FAIL|canary|cuda_ipc' "$out/run-ipc-$way.log" | tail -8
    python3 - "/tmp/run-ipc-$way" <<'PY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
for name in ("export_time", "update_weights_prepare_time", "update_weights_move_time", "update_weights_activate_time",
             "update_weights_pause_time", "update_weights_time",
             "update_weights_cuda_ipc_bytes", "update_weights_wire_bytes", "canary_logprob_difference"):
    found = [row["perf/" + name] for row in rows if "perf/" + name in row]
    print(name, f"median {statistics.median(found):.6g} of {len(found)}" if found else "none")
PY
  done
fi
[[ " $parts " != *" speed "* ]] || (cd "$root" && timeout 120 python3 -P -m pytest -q -p no:cacheprovider -s tests/bench/bench_engine.py -k gpu 2>&1 | tee "$out/gpu-engine.log" | tail -30)
for device in cuda cpu; do
  [[ " $parts " == *" $device "* ]] || continue
  timeout 200 env MILEPOST_CACHE=/tmp/milepost-cache bash -c "$(declare -f milepost); milepost run lookup --plain --out /tmp/run-$device \
    --set actors.engine.device=$device --set actors.trainer.device=$device" > "$out/run-$device.log" 2>&1
  echo "== lookup on $device: exit $?"
  grep -E 'ready after|evaluation:|solved, |steps in|FAIL' "$out/run-$device.log" | tail -14
  tail -1 "/tmp/run-$device/metrics.jsonl" | head -c 600; echo
  python3 - "/tmp/run-$device" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
print({name: round(x, 3) for name, x in rows[-1].items() if name.startswith("system/") and "gpu" in name})
rows = rows[6:]
mean = lambda key: sum(row[key] for row in rows) / len(rows)
wall = rows[-1]["time"] - rows[0]["time"]
print(f"{len(rows)} steps, {wall / (len(rows) - 1):.3f} s a step; "
      f"trainer step {mean('perf/step_time'):.3f} s, waits {mean('perf/train_wait_time'):.3f} s, "
      f"log-prob difference {mean('train/train_rollout_logprob_abs_diff'):.2e}")
PY
done
