# A model that is trained in one program and predicts in another, and what Python's safetensors makes of its file.
. tests/hosts/host.sh
PYTHON=$DML_BUILD/python/bin/python

for program in train predict; do check "$program builds" host $program "$CC -std=c11 -O1"; done
cd "$WORK" || exit 1
same_scores() { # file
    ./predict "$1" >scores && diff want scores
}
train() {
    ./train run.safetensors >want
}
check "train" train
check "predict gives the same scores, in little memory" same_scores run.safetensors
cat said
head -c 1000 run.safetensors >short.safetensors
check_fails "half a file" "short.safetensors" ./predict short.safetensors
check_fails "no file" "nothing.safetensors" ./predict nothing.safetensors

# As tests/base/safetensors_python_test.sh has it; the one that comes second finds it there.
prepare() {
    has_packages() { [ -x "$PYTHON" ] && "$PYTHON" -c 'import numpy, safetensors' 2>/dev/null; }
    has_packages && return
    has python3 || { why='python3 is not installed'; return 1; }
    (
        if has flock; then flock 9; fi
        has_packages && exit
        rm -rf "$DML_BUILD/python"
        python3 -m venv "$DML_BUILD/python" && "$PYTHON" -m pip install -q --disable-pip-version-check --timeout 10 \
            --retries 1 safetensors numpy
    ) 9>"$DML_BUILD/python.lock" >said 2>&1 || { why='pip brings no safetensors and numpy'; return 1; }
}

cat >read.py <<'END'
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

shapes = {"dense_1.weight": (256, 64), "dense_1.bias": (256,), "dense_2.weight": (256, 256), "dense_2.bias": (256,),
          "dense_3.weight": (10, 256), "dense_3.bias": (10,)}
want = dict(shapes, **{"dml.velocity." + name: shape for name, shape in shapes.items()})
with safe_open(sys.argv[1], "np") as file:
    got = {name: file.get_tensor(name) for name in file.keys()}
    metadata = file.metadata()
assert {name: tensor.shape for name, tensor in got.items()} == want, {n: t.shape for n, t in got.items()}
assert all(t.dtype == np.float32 and np.isfinite(t).all() and t.any() for t in got.values())
print(metadata)
assert metadata["dml.optimizer"] == "sgd" and metadata["dml.step"] == "20" and metadata["dml.seed"] == "11", metadata

# The model alone, as another tool would write it.
save_file({name: got[name] for name in reversed(list(shapes))}, sys.argv[2], metadata={"made by": "Python"})
got["dense_2.weight"] = got["dense_2.weight"][:, :128].copy()
save_file({name: got[name] for name in shapes}, sys.argv[3])
END
if prepare; then
    check "Python reads the trainer's file" "$PYTHON" read.py run.safetensors theirs.safetensors other.safetensors
    check "predict reads Python's file" same_scores theirs.safetensors
    check_fails "Python's file of another model" "dense_2.weight" ./predict other.safetensors
else
    skip "Python's safetensors" "$why"
fi
cd "$ROOT" || exit 1
report hosts/predict
