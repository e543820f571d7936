/* implementation.c: the one file of each program here that holds the library's functions; the others only
   include the headers. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"
