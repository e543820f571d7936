#ifndef DML_BASE_CHECKSUM_C
#define DML_BASE_CHECKSUM_C

#include "base/checksum.h"

DML__LOCAL uint32_t dml__checksum(uint32_t sum, const void *data, size_t bytes)
{
    /* Half a byte at a time: a table of 16 needs no global that somebody would have to fill. */
    static const uint32_t table[16] = { 0x00000000u, 0x105ec76fu, 0x20bd8edeu, 0x30e349b1u,
                                        0x417b1dbcu, 0x5125dad3u, 0x61c69362u, 0x7198540du,
                                        0x82f63b78u, 0x92a8fc17u, 0xa24bb5a6u, 0xb21572c9u,
                                        0xc38d26c4u, 0xd3d3e1abu, 0xe330a81au, 0xf36e6f75u };
    const unsigned char *byte = (const unsigned char *)data;
    uint32_t rest = ~sum;
    for (size_t i = 0; i < bytes; i++) {
        rest ^= byte[i];
        rest = (rest >> 4) ^ table[rest & 15];
        rest = (rest >> 4) ^ table[rest & 15];
    }
    return ~rest;
}

#endif
