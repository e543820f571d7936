# dml's build. gcc (or clang) and GNU make are enough; `make help` lists the targets.

CFLAGS ?= -O2
BUILD ?= build
PREFIX ?= /usr/local
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
NVCCFLAGS ?= -O2
Q := $(if $(VERBOSE),,@)

WARNINGS := -Wall -Wextra -Wpedantic
BASE_LIBS := -lm -lpthread -ldl
SOURCES := $(wildcard src/dml* src/*/*)
PRODUCTS := $(notdir $(wildcard src/dml*))
VERSION := $(shell sed -n 's/^.define DML_VERSION "\(.*\)"/\1/p' src/base/platform.h)

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all always demo test test-programs bench bench-peers amalgamate install uninstall data format format-check clean help

# ---- what this machine has ----

has_header = $(shell printf '\043include <$(1)>\n' | $(CC) -E -x c - >/dev/null 2>&1 && echo yes)
has_command = $(shell command -v $(1))

ifeq ($(filter dml_opencl.c,$(PRODUCTS)),)
  NO_OPENCL := src/dml_opencl.c is not there
else ifeq ($(OPENCL),no)
  NO_OPENCL := OPENCL=no
else ifeq ($(call has_header,CL/cl.h),)
  NO_OPENCL := no CL/cl.h (Debian: opencl-headers)
endif

ifeq ($(filter dml_cuda.cu,$(PRODUCTS)),)
  NO_CUDA := src/dml_cuda.cu is not there
else ifeq ($(CUDA),no)
  NO_CUDA := CUDA=no
else ifeq ($(NVCC),)
  NO_CUDA := no nvcc on PATH or in /usr/local/cuda
else
  CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC)))))
  CUDA_LIB := $(patsubst %/,%,$(dir $(firstword $(wildcard $(addsuffix /libcudart_static.a,\
      $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib $(CUDA_HOME)/lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu)))))
  # What of this list the compiler knows, as code, and the last also as PTX for what comes after it.
  CUDA_ARCHS ?= $(filter 75 80 86 89 90,$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch)))
  ifeq ($(CUDA_LIB),)
    NO_CUDA := no libcudart_static.a in $(CUDA_HOME)
  else ifeq ($(CUDA_ARCHS),)
    NO_CUDA := $(NVCC) knows none of sm_75 to sm_90
  endif
endif

ifndef NO_OPENCL
  DEVICE_FLAGS += -DDML_OPENCL
  DEVICE_OBJECTS += $(BUILD)/dml_opencl.o
endif
ifndef NO_CUDA
  DEVICE_FLAGS += -DDML_CUDA -DDML_NCCL
  DEVICE_OBJECTS += $(BUILD)/dml_cuda.o
  # cudart is linked statically, so that a program also starts where there is no driver.
  CUDA_LIBS := -L$(CUDA_LIB) -lcudart_static -lrt -lstdc++
  # Hopper's own instructions need code for 90a (CUDA 12); that code runs wherever sm_90's does.
  HOPPER := $(if $(filter 90,$(CUDA_ARCHS)),$(shell $(NVCC) -arch=sm_90a -E -x cu /dev/null >/dev/null 2>&1 && echo a))
  PTX := $(foreach a,$(lastword $(CUDA_ARCHS)),-gencode arch=compute_$(a),code=compute_$(a))
  GENCODE := $(foreach a,$(patsubst 90,90$(HOPPER),$(CUDA_ARCHS)),-gencode arch=compute_$(a),code=sm_$(a)) $(PTX)
  TEST_GENCODE := $(if $(wildcard /dev/nvidiactl),$(GENCODE),$(PTX)) # without a card nothing of it runs
endif

# ---- the products and the programs, each from one source file ----

TOOLS := $(patsubst tools/%.c,$(BUILD)/%,$(wildcard tools/*.c))
SAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard samples/*.c))
BENCHES := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c))

all: $(PRODUCTS) $(TOOLS) $(DEVICE_OBJECTS) $(SAMPLES) $(BENCHES)
	@echo "built in $(BUILD)/: $(notdir $(TOOLS) $(DEVICE_OBJECTS)) $(patsubst $(BUILD)/%,%,$(SAMPLES) $(BENCHES))"
	$(if $(NO_OPENCL),@echo "left out: the OpenCL backend: $(NO_OPENCL)")
	$(if $(NO_CUDA),@echo "left out: the CUDA backend: $(NO_CUDA)")

# One run of the tool a product; a product that stays the same keeps its time, so nothing is rebuilt for it.
$(BUILD)/products.stamp: $(BUILD)/amalgamate $(SOURCES)
	$(Q)for product in $(PRODUCTS); do $(BUILD)/amalgamate src/$$product -o $$product || exit 1; done
	@touch $@
$(PRODUCTS): $(BUILD)/products.stamp
	$(Q)test -f $@ || $(BUILD)/amalgamate src/$@ -o $@
amalgamate: $(PRODUCTS) docs/reference.md docs/ops.md

docs/reference.md: $(BUILD)/reference $(PRODUCTS)
	$(Q)$(BUILD)/reference dml.h dml_comm.h >$(BUILD)/reference.md && mv $(BUILD)/reference.md $@

# Needs the op table, so it holds the library, compiled in the shortest time: clang's, a fifth of gcc's.
$(BUILD)/ops: tools/ops.c $(PRODUCTS)
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(or $(call has_command,clang),$(CC)) -std=c99 -O0 $(WARNINGS) -DDML_NO_AVX -DDML_NO_THREADS -I. $< -o $@ $(BASE_LIBS)
docs/ops.md: $(BUILD)/ops
	$(Q)$(BUILD)/ops dml.h >$(BUILD)/ops.md && mv $(BUILD)/ops.md $@
	$(Q)$(BUILD)/ops dml.h README.md >$(BUILD)/README.md && mv $(BUILD)/README.md README.md

$(BUILD)/dml_opencl.o: dml_opencl.c dml.h
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) $(WARNINGS) -I. -c $< -o $@
# (Anew, too, where it was for others: `make test` leaves some out, and `CUDA=no` all. `+`: a dry run has to know.)
$(BUILD)/gencode: SAYS = $(GENCODE)
$(BUILD)/devices: SAYS = $(DEVICE_FLAGS)
$(BUILD)/gencode $(BUILD)/devices: always
	+@mkdir -p $(@D) && { echo '$(SAYS)' | cmp -s - $@ || echo '$(SAYS)' >$@; }
$(BUILD)/dml_cuda.o: dml_cuda.cu dml.h $(BUILD)/gencode
	@mkdir -p $(@D)
	@echo "  NVCC  $@ ($(CUDA_ARCHS))"
	$(Q)$(NVCC) $(NVCCFLAGS) $(GENCODE) -Xcompiler -Wall,-Wextra -I. -c $< -o $@

# The tools don't use the library; a sample is a whole program that defines DML_IMPLEMENTATION. Here that line is taken
# out of it, since samples and benchmarks share one object with the implementation: it takes longer to compile than all
# of them. (tests/samples/hello_test.sh compiles one as it stands.)
$(BUILD)/%: tools/%.c $(wildcard tools/*.h)
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) $(WARNINGS) $< -o $@ $(BASE_LIBS)
$(BUILD)/samples/%: samples/%.c $(wildcard samples/*.h) $(BUILD)/dml.o $(DEVICE_OBJECTS)
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q){ echo '#line 1 "$<"'; sed 's/^#define DML_IMPLEMENTATION$$//' $<; } | $(CC) -std=c99 -D_GNU_SOURCE= $(CFLAGS) \
	    $(WARNINGS) -I. -Isamples $(DEVICE_FLAGS) -c -x c - -o $@.o && $(CC) $(CFLAGS) $@.o $(BUILD)/dml.o $(DEVICE_OBJECTS) \
	    -o $@ $(CUDA_LIBS) $(BASE_LIBS)
$(BUILD)/dml.o: dml.h dml_comm.h $(BUILD)/devices
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)printf '\043include "%s"\n' dml.h dml_comm.h | $(CC) -std=c99 $(CFLAGS) $(WARNINGS) -I. $(DEVICE_FLAGS) -DDML_IMPLEMENTATION \
	    -c -x c - -o $@
$(BUILD)/bench/%: bench/%.c $(wildcard bench/*.h) $(BUILD)/dml.o $(DEVICE_OBJECTS)
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 -D_GNU_SOURCE= $(CFLAGS) $(WARNINGS) -I. $(BENCH_FLAGS) $(DEVICE_FLAGS) $< $(BUILD)/dml.o \
	    $(DEVICE_OBJECTS) -o $@ $(CUDA_LIBS) $(BASE_LIBS)
$(BUILD)/bench/numerics: tests/kernels/exact.h
# This one launches kernels by themselves, some of them by a formula's number.
$(BUILD)/bench/gpu: BENCH_FLAGS := -Isrc
$(BUILD)/bench/gpu: src/kernels/formulas.h
# This one times what the library keeps to itself.
$(BUILD)/bench/reduce_op: BENCH_FLAGS := -Isrc
$(BUILD)/bench/reduce_op: src/comm/reduce_op.c src/base/float16.c
$(BUILD)/bench/lines: BENCH_FLAGS := -Isrc
$(BUILD)/bench/lines: src/net/shm_copy.h

# This one measures what the library keeps to itself.
$(BUILD)/bench/transport: bench/transport.c bench/loopback.h tests/net/sockets.h $(SOURCES)
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 -D_GNU_SOURCE= -DDML__SEPARATE $(CFLAGS) $(WARNINGS) -Isrc $< $(addprefix src/,base/clock.c base/cpu.c \
	    base/memory.c base/os_thread.c net/host_memory.c net/local.c net/shm.c net/shm_meet.c net/shm_shared.c) -o $@ $(BASE_LIBS)

# These say what the library keeps to itself, and time the product: its files in one, as a program has them. (What they use of
# dml.h is in dml_comm.h, too.)
$(BUILD)/bench/allreduce $(BUILD)/bench/choice: $(BUILD)/bench/%: bench/%.c $(wildcard bench/*.h) dml.h dml_comm.h
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)printf '\043%s\n' 'define DML_IMPLEMENTATION' 'include "dml_comm.h"' 'undef DML_IMPLEMENTATION' 'include "$<"' | \
	    $(CC) -std=c99 -D_GNU_SOURCE= $(CFLAGS) $(WARNINGS) -I. -Isrc -x c - -o $@ $(BASE_LIBS)

# This one reads rows and uses nothing of the library.
$(BUILD)/bench/report: bench/report.c bench/rows.h bench/reasons.h
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) $(WARNINGS) $< -o $@ -lm

# This one is about schedules, of which the products show nothing, so it takes in the sources that it needs.
$(BUILD)/bench/simulate: bench/simulate.c bench/options.h $(SOURCES) $(BUILD)/plot
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 -D_GNU_SOURCE= $(CFLAGS) $(WARNINGS) -DDML__SEPARATE -Isrc $< -o $@ -lm

# On the CPU, and built for it alone, unless DEMO asks for a device: nvcc takes longer than the demo.
DEMO_PROGRAM := $(BUILD)/$(if $(findstring --device,$(DEMO)),samples/mnist,demo/mnist)
demo: $(BUILD)/dmlrun $(DEMO_PROGRAM)
	$(BUILD)/dmlrun -n 4 $(DEMO_PROGRAM) $(DEMO)
$(BUILD)/demo/mnist: samples/mnist.c $(wildcard samples/*.h) dml.h dml_comm.h
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(CC) -std=c99 $(CFLAGS) $(WARNINGS) -I. $< -o $@ $(BASE_LIBS)

# What BENCH may name: prices is a script alone.
BENCHMARKS := $(filter-out report,$(patsubst bench/%.c,%,$(wildcard bench/*.c))) prices
ifneq ($(filter bench,$(MAKECMDGOALS)),)
  BAD_BENCH := $(filter-out $(BENCHMARKS),$(BENCH))
  $(if $(BAD_BENCH),$(error no such benchmark: $(BAD_BENCH). BENCH takes names of $(BENCHMARKS)))
endif
bench: $(BENCHES)
	@CC='$(CC)' CFLAGS='$(CFLAGS)' sh bench/run.sh '$(BUILD)' $(if $(QUICK),--quick)

# The libraries that the benchmarks time ours beside.
bench-peers:
	@CC='$(CC)' sh bench/peers/install.sh $(BUILD)/peers

# ---- tests: a variant is all of src/ and tests/ compiled in one way; src/ is built file by file, or, for variants that are
# seldom built alone, a room at once: half of a file's time goes into its headers ----

GENERATED := $(patsubst src/%,$(BUILD)/gen/%.inc,$(wildcard src/gpu/*.cl))
$(BUILD)/gen/%.inc: src/% $(BUILD)/amalgamate $(wildcard src/gpu/*)
	@mkdir -p $(@D)
	$(Q)$(BUILD)/amalgamate --strings $< -o $@
	@touch $@

C_FILES := $(wildcard src/*/*.c)
$(BUILD)/gen/rooms/%.c: src/% # a folder, which is newer when a file is
	@mkdir -p $(@D)
	$(Q)printf '#include "%s"\n' $(patsubst src/%,%,$(sort $(filter src/$*/%,$(C_FILES)))) >$@
.SECONDARY: $(patsubst src/%/,$(BUILD)/gen/rooms/%.c,$(sort $(dir $(C_FILES))))
CU_FILES := $(wildcard src/*/*.cu)
TEST_FILES := $(wildcard tests/*/*_test.c)
SCRIPTS := $(wildcard tests/*/*_test.sh)
CPU_FOLDERS := base thread kernels device graph ops decode train net comm dist
# Of the collectives' tests, those that a sanitizer of memory watches, and those for other kinds of numbers; the
# rest is about time and processes.
COMM_MEMORY := $(addprefix comm/,all_to_allv arguments choice collectives faults fork frame groups in_place leaves messages random_program shared tune \
    reduce_op settings stats trace unreceived)
COMM_NUMBERS := $(addprefix comm/,collectives frame leaves reduce_op settings)

# Variants: NAME.cc, .flags, .folders (which tests, or single ones), .no (why it is left out), and where they aren't this
# machine's: .run (what runs a program), .needs (what that needs), .exe (how its name ends), .ar, .libs.
BY_ROOMS := nothreads emulated musl windows arm aarch64 ppc64
VARIANTS := normal clang asan tsan nothreads emulated musl windows arm aarch64 ppc64

normal.cc := $(CC)
normal.flags := $(CFLAGS) $(DEVICE_FLAGS) $(if $(filter -O2 -O3,$(CFLAGS)),-DTEST_FUSES)
normal.cuda := $(if $(NO_CUDA),,yes)
normal.folders := $(patsubst tests/%/,%,$(sort $(dir $(TEST_FILES))))

clang.cc := clang
clang.flags := -O2 $(if $(NO_OPENCL),,-DDML_OPENCL)
# What has loops worth a second compiler. Of OpenCL its host's code: the kernels are compiled by the OpenCL driver.
clang.folders := thread kernels graph/in_place graph/narrow ops/ops ops/random_graphs train/trainer gpu/backend
clang.no := $(if $(call has_command,clang),,clang is not installed)

asan.cc := $(CC)
asan.flags := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
asan.folders := $(filter-out comm,$(CPU_FOLDERS)) $(COMM_MEMORY) gpu conformance
asan.no := $(if $(shell echo 'int main(void){return 0;}' | $(CC) -fsanitize=address,undefined -x c - -o /dev/null \
    2>&1),$(CC) has no AddressSanitizer)

tsan.cc := $(CC)
tsan.flags := -O1 -g1 -fsanitize=thread -DDML_NO_AVX512
# Where threads meet: with one kind of vectors, and none; what a thread gets is cut the same way for all. (Work-items that
# race are oclgrind's to find.)
tsan.folders := base/os_thread thread kernels device graph/own_thread graph/program train/trainer train/parts net comm/collectives comm/messages comm/patience comm/groups comm/tune \
    comm/fork dist/across_steps dist/all_reduce_sync dist/downpour dist/mirrored dist/parameter_server dist/pipeline dist/sandblaster dist/zero_sync gpu/backend
tsan.no := $(if $(shell echo 'int main(void){return 0;}' | $(CC) -fsanitize=thread -x c - -o /dev/null 2>&1),$(CC) \
    has no ThreadSanitizer)

nothreads.cc := $(CC)
nothreads.flags := -O1 -DDML_NO_THREADS -DDML_NO_AVX
# What starts threads, or waits for them.
nothreads.folders := base/os_thread thread device graph train net comm/collectives dist/all_reduce_sync dist/local_sgd

# AVX-512 and AMX in plain C (tests/emulated/immintrin.h), for machines without.
emulated.cc := $(CC)
emulated.flags := -O1 -Wno-psabi -DDML__EMULATED -Itests/emulated
emulated.folders := kernels ops/ops ops/op_recurrent ops/op_attention
emulated.no := $(if $(filter x86_64,$(shell uname -m)),,only on x86-64)

arm.cc := arm-linux-gnueabihf-gcc
arm.flags := -O1
arm.run := qemu-arm -L /usr/arm-linux-gnueabihf
# Words of 32 bits. (Its kernels are the plain ones, which run on x86-64, too; ops/ops asks for each with its sizes.)
arm.folders := base thread kernels/half graph ops decode train net/wire net/handshake net/local net/shm \
    $(filter-out comm/collectives,$(COMM_NUMBERS)) dist/all_reduce_sync dist/cluster dist/compress
arm.no := $(if $(call has_command,$(arm.cc)),$(if $(call has_command,qemu-arm),,qemu-arm is not \
    installed),$(arm.cc) is not installed)

aarch64.cc := aarch64-linux-gnu-gcc
aarch64.flags := -O1
aarch64.run := qemu-aarch64 -L /usr/aarch64-linux-gnu
# What has code of its own there. (The words are as long, and bytes in the same order, as on x86-64.)
aarch64.folders := base/cpu base/os_thread thread $(filter-out kernels/scratch,$(filter kernels/%,$(TEST_FILES:tests/%_test.c=%))) ops/random_graphs train/trainer
aarch64.no := $(if $(call has_command,$(aarch64.cc)),$(if $(call has_command,qemu-aarch64),,qemu-aarch64 is not \
    installed),$(aarch64.cc) is not installed)

# Big endian: every wire and file format has to hold there. Slow, so what has no byte order is left to the others.
ppc64.cc := powerpc64-linux-gnu-gcc
ppc64.flags := -O1
ppc64.run := qemu-ppc64 -L /usr/powerpc64-linux-gnu
ppc64.folders := base graph/weights kernels/bf16 kernels/half kernels/rounded kernels/dropout ops/op_dropout ops/op_gather train/checkpoint train/cifar train/idx train/loss_scale train/metrics \
    net/wire net/handshake $(filter-out comm/collectives,$(COMM_NUMBERS))
ppc64.no := $(if $(call has_command,$(ppc64.cc)),$(if $(call has_command,qemu-ppc64),,qemu-ppc64 is not \
    installed),$(ppc64.cc) is not installed)

musl.cc := musl-gcc
musl.flags := -O1 -static -DDML_NO_AVX
# What depends on the C library.
musl.folders := base thread device train net comm/collectives comm/fork comm/faults
musl.no := $(if $(call has_command,$(musl.cc)),,$(musl.cc) is not installed)

# Wine runs the programs; it makes its folder once, before the tests run side by side.
WINE := $(firstword $(shell command -v wine64) $(wildcard /usr/lib/wine/wine64) $(shell command -v wine))
WINE_RUN := env WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml= WINEPREFIX=$(abspath $(BUILD))/wine $(WINE)
windows.cc := x86_64-w64-mingw32-gcc
windows.ar := x86_64-w64-mingw32-ar
windows.flags := -O1
windows.libs := -static
windows.run := $(WINE_RUN)
windows.exe := .exe
windows.folders := base thread kernels device graph ops/ops decode train
windows.needs := $(BUILD)/wine.stamp
windows.no := $(if $(call has_command,$(windows.cc)),$(if $(WINE),,wine is not installed),$(windows.cc) is not installed)
$(BUILD)/wine.stamp:
	@mkdir -p $(@D)
	@echo "  WINE  $@"
	$(Q)$(WINE_RUN) wineboot -i >/dev/null 2>&1 && touch $@

# `make test T="graph base/philox" V=normal`: which folders or programs, which variants.
T ?= %
V ?= $(VARIANTS) scripts oclgrind
RUN_VARIANTS := $(foreach v,$(filter $(V),$(VARIANTS)),$(if $($(v).no),,$(v)))
# The names (folder/name) of a variant's tests, or of scripts, that T asks for.
chosen = $(filter $(T) $(addsuffix /%,$(T)),$(1))
TEST_NAMES := $(TEST_FILES:tests/%_test.c=%)
SCRIPT_NAMES := $(SCRIPTS:tests/%_test.sh=%)
V_NAMES = $(foreach v,$(filter $(V),$(VARIANTS)),$(filter $($(v).folders) $(addsuffix /%,$($(v).folders)),$(TEST_NAMES))) \
    $(if $(filter scripts,$(V)),$(SCRIPT_NAMES)) $(if $(filter oclgrind,$(V)),gpu/kernels)
ifneq ($(filter test,$(MAKECMDGOALS)),) # of a name that there isn't, nothing would be run, and nothing fail
  BAD_V := $(strip $(foreach v,$(V),$(if $(filter $(v),$(VARIANTS) scripts oclgrind),,$(v))))
  BAD_T := $(strip $(foreach t,$(T),$(if $(filter $(t) $(t)/%,$(TEST_NAMES) $(SCRIPT_NAMES)),,$(t))))
  $(if $(BAD_V),$(error no such variant: $(BAD_V). V takes names of $(VARIANTS) scripts oclgrind))
  $(if $(BAD_T),$(error no such test: $(BAD_T). T takes folders of tests/, such as graph, and programs in them, such as base/philox))
  NOT_OF_V := $(strip $(foreach t,$(T),$(if $(filter $(t) $(t)/%,$(V_NAMES)),,$(t))))
  $(if $(NOT_OF_V),$(error V=$(V) runs none of: $(NOT_OF_V). CONTRIBUTING.md says which variant runs what))
endif
names = $(call chosen,$(filter $($(1).folders) $(addsuffix /%,$($(1).folders)),$(TEST_NAMES)))

define VARIANT
$(1).lib_files := $(filter-out $(if $(filter gpu%,$($(1).folders)),,src/gpu/%) $(if $(NO_OPENCL),src/gpu/opencl%) \
    $(if $(filter comm%,$($(1).folders)),,src/net/% src/comm/% src/dist/%),$(C_FILES))
$(1).objects = $(if $(filter $(1),$(BY_ROOMS)),$$(patsubst src/%/,$(BUILD)/$(1)/obj/%.o,$$(sort $$(dir $$($(1).lib_files)))),\
    $$($(1).lib_files:src/%.c=$(BUILD)/$(1)/obj/%.o)) \
    $(if $($(1).cuda),$(CU_FILES:src/%.cu=$(BUILD)/$(1)/obj/%.cu.o))
$(BUILD)/$(1)/obj/%.o: $(if $(filter $(1),$(BY_ROOMS)),$(BUILD)/gen/rooms,src)/%.c $(GENERATED)
	@mkdir -p $$(@D)
	@echo "  CC    $$@"
	$(Q)$($(1).cc) -std=c99 -DDML__SEPARATE -Isrc -I$(BUILD)/gen $(WARNINGS) $($(1).flags) -MMD -MP -c $$< -o $$@
$(BUILD)/$(1)/obj/%.cu.o: src/%.cu $(GENERATED) $(SOURCES)
	@mkdir -p $$(@D)
	@echo "  NVCC  $$@"
	$(Q)$(NVCC) $(NVCCFLAGS) $(TEST_GENCODE) -DDML__SEPARATE -Isrc -I$(BUILD)/gen -c $$< -o $$@
$(BUILD)/$(1)/libdml.a: $$($(1).objects)
	@rm -f $$@
	$(Q)$(or $($(1).ar),ar) rcs $$@ $$($(1).objects)
$(BUILD)/$(1)/tests/%$($(1).exe): tests/%.c $(BUILD)/$(1)/libdml.a
	@mkdir -p $$(@D)
	@echo "  CC    $$@"
	$(Q)$($(1).cc) -std=c99 -D_GNU_SOURCE= -DDML__SEPARATE -Isrc -I$(BUILD)/gen $(WARNINGS) $($(1).flags) -MMD -MP $$< \
	    $(BUILD)/$(1)/libdml.a -o $$@ $(if $($(1).cuda),$(CUDA_LIBS)) $(or $($(1).libs),$(BASE_LIBS))
-include $$(wildcard $(BUILD)/$(1)/obj/*.d $(BUILD)/$(1)/obj/*/*.d $(BUILD)/$(1)/tests/*/*.d)
endef
$(foreach v,$(VARIANTS),$(eval $(call VARIANT,$(v))))

# The plan: a line each of "LABEL<tab>COMMAND" or "skip<tab>LABEL<tab>REASON"; the longest come first.
define NEWLINE


endef
TAB := $(shell printf '\t')
program_lines = $(foreach n,$(call names,$(1)),$(2) $(n)$(TAB)$(3)$(BUILD)/$(1)/tests/$(n)_test$($(1).exe)$(NEWLINE))
skip_line = $(if $(2),skip$(TAB)$(1)$(TAB)$(2)$(NEWLINE))
NO_OCLGRIND := $(if $(NO_OPENCL),$(NO_OPENCL),$(if $(wildcard /usr/lib/oclgrind/liboclgrind-rt-icd.so),,oclgrind is \
    not installed))
# What the other programs of gpu/ launch, if anything, is among its kernels.
oclgrind_lines = $(foreach n,$(call chosen,gpu/kernels),oclgrind $(n)$(TAB)sh tests/oclgrind.sh $(BUILD)/normal/tests/$(n)_test$(NEWLINE))
PLAN = $(if $(filter oclgrind,$(V)),$(if $(NO_OCLGRIND),,$(oclgrind_lines)))\
$(if $(filter scripts,$(V)),$(foreach n,$(call chosen,$(SCRIPT_NAMES)),script $(n)$(TAB)sh tests/$(n)_test.sh$(NEWLINE)))\
$(foreach v,$(RUN_VARIANTS),$(call program_lines,$(v),$(v),$(if $($(v).run),$($(v).run) )))\
$(foreach v,$(filter $(V),$(VARIANTS)),$(call skip_line,variant $(v),$($(v).no)))\
$(call skip_line,OpenCL backend,$(NO_OPENCL))$(call skip_line,CUDA backend,$(NO_CUDA))\
$(if $(filter oclgrind,$(V)),$(call skip_line,oclgrind runs,$(NO_OCLGRIND)))
TEST_PROGRAMS := $(foreach v,$(RUN_VARIANTS) $(if $(filter oclgrind,$(V)),normal),$(foreach n,$(call names,$(v)),\
    $(BUILD)/$(v)/tests/$(n)_test$($(v).exe)))

test-programs: $(sort $(TEST_PROGRAMS)) $(TOOLS) $(foreach v,$(RUN_VARIANTS),$($(v).needs))
ifneq ($(and $(WINE),$(filter build/windows,$(call chosen,$(SCRIPT_NAMES)))),)
test-programs: $(if $(filter scripts,$(V)),$(windows.needs))
endif

# Everything compiles first, on all cores unless -j says otherwise. When something doesn't, that is a failed test, and
# what would have been built anew is removed, so that no older program passes in its place. (MAKE_COMMAND: make -n runs
# what says MAKE.)
# What takes longest, nvcc's, comes first. Without a card nothing of that runs: it is compiled for the first and the last of
# CUDA_ARCHS and as PTX, which between them are all that the code asks about.
TESTED := $(if $(filter scripts,$(V)),all $(GENERATED)) test-programs $(if $(wildcard /dev/nvidiactl),,\
    CUDA_ARCHS='$(sort $(firstword $(CUDA_ARCHS)) $(lastword $(CUDA_ARCHS)))')
test:
	$(shell mkdir -p $(BUILD))$(file >$(BUILD)/test-plan,$(PLAN))
	@$(MAKE) --no-print-directory -k $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2)) \
	    $(TESTED) || { $(MAKE) --no-print-directory -n -k $(TESTED) | sed -n 's/^echo "  [A-Z]* *\([^ "]*\).*/\1/p' | \
	    xargs rm -f; printf 'build\techo "something does not compile: see above"; exit 1\n' >>$(BUILD)/test-plan; }
	@DML_BUILD='$(BUILD)' CC='$(CC)' MAKE='$(MAKE_COMMAND)' NVCC='$(NVCC)' CUDA_ARCHS='$(CUDA_ARCHS)' \
	    CUDA_LIBS='$(CUDA_LIBS)' NO_CUDA='$(NO_CUDA)' NO_OPENCL='$(NO_OPENCL)' \
	    WINE_RUN='$(if $(WINE),$(WINE_RUN))' sh tests/run.sh $(BUILD)/test-plan

# ---- install, data, layout ----

BIN_DIR := $(DESTDIR)$(PREFIX)/bin
INCLUDE_DIR := $(DESTDIR)$(PREFIX)/include
SHARE_DIR := $(DESTDIR)$(PREFIX)/share

install: $(PRODUCTS) $(BUILD)/dmlrun
	mkdir -p $(BIN_DIR) $(INCLUDE_DIR) $(SHARE_DIR)/dml $(SHARE_DIR)/pkgconfig $(SHARE_DIR)/cmake/dml
	cp $(BUILD)/dmlrun $(BIN_DIR)/
	cp $(filter %.h,$(PRODUCTS)) $(INCLUDE_DIR)/
	cp $(filter-out %.h,$(PRODUCTS)) LICENSE $(SHARE_DIR)/dml/
	sed 's/@VERSION@/$(VERSION)/' packaging/dml.pc.in >$(SHARE_DIR)/pkgconfig/dml.pc
	cp packaging/dmlConfig.cmake $(SHARE_DIR)/cmake/dml/
	sed 's/@VERSION@/$(VERSION)/' packaging/dmlConfigVersion.cmake.in >$(SHARE_DIR)/cmake/dml/dmlConfigVersion.cmake
	@echo "pkg-config finds it with PKG_CONFIG_PATH=$(PREFIX)/share/pkgconfig, CMake with CMAKE_PREFIX_PATH=$(PREFIX)"

uninstall:
	rm -f $(BIN_DIR)/dmlrun $(addprefix $(INCLUDE_DIR)/,$(filter %.h,$(PRODUCTS))) $(SHARE_DIR)/pkgconfig/dml.pc
	rm -rf $(SHARE_DIR)/dml $(SHARE_DIR)/cmake/dml

data:
	@sh tools/data.sh '$(BUILD)/data/mnist' '$(DML_DATA)'

FORMATTED = $(wildcard $(foreach d,src src/* samples tests tests/* bench bench/* tools,$(foreach e,c h cl cu cuh cpp,$(d)/*.$(e))))
format:
	@clang-format -i $(FORMATTED)
format-check:
	@clang-format --dry-run -Werror $(FORMATTED)

clean:
	rm -rf $(BUILD)

help:
	@sed -n 's/^# *| //p' Makefile
# | make                     everything this machine can build, into build/; says what it left out and why
# | make demo                trains a classifier of drawn digits with 4 processes; DEMO="options of the sample"
# | make test                all tests, all variants; ends in N passed, N failed
# |   T="graph base/philox"  only these folders or programs of tests/
# |   V="normal asan"        only these variants: normal clang asan tsan nothreads emulated musl windows arm aarch64 ppc64,
# |                          and the runs oclgrind, scripts
# | make bench               the benchmarks, and a report of them in build/bench/report.md; QUICK=1: a part of them;
# |                          BENCH="allreduce links": only these
# | make bench-peers         installs other libraries into build/peers, to be timed beside ours (5 GB)
# | make amalgamate          writes dml.h, dml_comm.h, dml_cuda.cu and dml_opencl.c from src/, and docs/reference.md,
# |                          docs/ops.md and the README's table of ops
# | make data                MNIST into build/data/mnist: downloaded, or unpacked from DML_DATA=dir (dir/mnist/*.gz)
# | make install             dmlrun, headers, sources, pkg-config file, CMake package; PREFIX=/usr/local DESTDIR=
# | make uninstall           removes them
# | make format              clang-format over the sources; format-check only looks
# | make clean               removes build/
# | Variables: CC CFLAGS NVCC NVCCFLAGS CUDA_ARCHS="80 90" CUDA=no OPENCL=no BUILD=build VERBOSE=1
