/* clblast: a peer of bench/gpu: CLBlastSgemm on a device of the first platform of OpenCL.
   usage: clblast THREADS; CLBLAST_DEVICE is the device's number, otherwise 0 */
#define CL_TARGET_OPENCL_VERSION 120
#include "peer.h"

#include <clblast_c.h>

static cl_context context;
static cl_command_queue queue;
static cl_mem a, b, c;
static int m, n, k, trans_a, trans_b;

static CLBlastStatusCode product(void)
{
    const CLBlastStatusCode status = CLBlastSgemm(
        CLBlastLayoutRowMajor, trans_a ? CLBlastTransposeYes : CLBlastTransposeNo,
        trans_b ? CLBlastTransposeYes : CLBlastTransposeNo, (size_t)m, (size_t)n, (size_t)k, 1, a, 0,
        (size_t)(trans_a ? m : k), b, 0, (size_t)(trans_b ? k : n), 0, c, 0, (size_t)n, &queue, NULL);
    clFinish(queue);
    return status;
}

static void run(void)
{
    product();
}

static cl_mem matrix(int rows, int columns)
{
    const size_t count = (size_t)rows * (size_t)columns;
    float *numbers = peer_floats(count);
    cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, count * sizeof(float),
                                 numbers, NULL);
    free(numbers);
    return made;
}

static const char *prepare(const char *words)
{
    if (sscanf(words, "gemm %d %d %d %d %d", &m, &n, &k, &trans_a, &trans_b) != 5) return "such case";
    if (a) clReleaseMemObject(a), clReleaseMemObject(b), clReleaseMemObject(c);
    a = matrix(m, k), b = matrix(k, n), c = matrix(m, n);
    return product() == CLBlastSuccess ? NULL : "product of CLBlast's on this device";
}

int main(void)
{
    static char name[200];
    const char *wanted = getenv("CLBLAST_DEVICE");
    const cl_uint index = wanted ? (cl_uint)atoi(wanted) : 0;
    cl_platform_id platform;
    cl_device_id devices[64];
    cl_uint count = 0;
    cl_int error = CL_DEVICE_NOT_FOUND;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 64, devices, &count) != CL_SUCCESS || index >= count) {
        peer_say("no", "device of OpenCL");
        return 1;
    }
    context = clCreateContext(NULL, 1, &devices[index], NULL, NULL, &error);
    if (error == CL_SUCCESS) queue = clCreateCommandQueue(context, devices[index], 0, &error);
    if (error != CL_SUCCESS) {
        peer_say("no", "context of OpenCL");
        return 1;
    }
    clGetDeviceInfo(devices[index], CL_DEVICE_NAME, sizeof name - 1, name, NULL);
    return peer_serve(name, prepare, run);
}
