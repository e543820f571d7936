/* The first that a process does with OpenCL, by several threads at once. */
#include "device/backend.h"
#include "device/context.h"

#include "../test.h"

#include <pthread.h>

static int waiting = 4; /* threads that aren't there yet */

static void *open_and_close(void *wrong)
{
    __atomic_sub_fetch(&waiting, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&waiting, __ATOMIC_ACQUIRE) > 0) {
    }
    dml_context *context = dml_open(&(dml_options){ .device = "opencl:0", .threads = 1 });
    if (dml_status_of(context) != DML_OK && dml_status_of(context) != DML_ERROR_DEVICE) *(bool *)wrong = true;
    dml_close(context);
    return NULL;
}

static void four_threads_open_a_device(void)
{
    pthread_t thread[4];
    bool wrong[4] = { false };
    for (int i = 0; i < 4; i++) CHECK_INT(pthread_create(&thread[i], NULL, open_and_close, &wrong[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++) CHECK(!wrong[i]);
}

int main(void)
{
    RUN(four_threads_open_a_device);
    return test_report("gpu/opens_at_once");
}
