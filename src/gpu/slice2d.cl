/* slice2d.cl: parts of images, strided, with zeros around them; the meaning is that of src/kernels/slice2d.h.

   Ints: batch; then for height, width and channels each: in, out, step, count, before. The buffer of what
   came in begins at the first element that is taken. */
#ifndef DML_GPU_SLICE2D_CL
#define DML_GPU_SLICE2D_CL

/* y from x. Buffers x, y; size{batch * out height * width * channels}. */
KERNEL(slice2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0) * (unsigned)INT(2) * (unsigned)INT(7) * (unsigned)INT(12);
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, INT(2), INT(7), INT(12));
        const int h = e.h - INT(5), w = e.w - INT(10), c = e.channel - INT(15);
        const int taken = h >= 0 && h < INT(4) && w >= 0 && w < INT(9) && c >= 0 && c < INT(14);
        const WIDE line = (WIDE)e.image * INT(1) + (WIDE)h * INT(3);
        y[i] = taken ? x[(line * INT(6) + (WIDE)w * INT(8)) * INT(11) + (WIDE)c * INT(13)] : 0.0f;
    }
}

/* dx += dy where x was taken. Buffers dy, dx; size{batch * counts of height, width and channels}. */
KERNEL(slice2d_backward)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL float *dx = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0) * (unsigned)INT(4) * (unsigned)INT(9) * (unsigned)INT(14);
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, INT(4), INT(9), INT(14));
        const WIDE line = (WIDE)e.image * INT(1) + (WIDE)e.h * INT(3);
        const WIDE out_line = (WIDE)e.image * INT(2) + e.h + INT(5);
        dx[(line * INT(6) + (WIDE)e.w * INT(8)) * INT(11) + (WIDE)e.channel * INT(13)] +=
            dy[(out_line * INT(7) + e.w + INT(10)) * INT(12) + e.channel + INT(15)];
    }
}

#endif
