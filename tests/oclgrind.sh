# oclgrind.sh PROGRAM: runs a test program on Oclgrind alone, which looks for races and bad addresses in
# the OpenCL kernels; what it finds is a failed test.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
echo /usr/lib/oclgrind/liboclgrind-rt-icd.so >"$folder/oclgrind.icd"
OCL_ICD_VENDORS=$folder OCLGRIND_LOG=$folder/log OCLGRIND_DATA_RACES=1 DML_TEST_DEVICES=opencl "$1" || status=$?
if [ -s "$folder/log" ]; then
    echo 'Oclgrind found:'
    head -n 100 "$folder/log"
    exit 1
fi
exit ${status:-0}
