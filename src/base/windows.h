/* windows.h: what the .c files take from Windows, under names of our own. <windows.h> itself would bring its
   thousands of names into the file of the user who implements the library there. */
#ifndef DML_BASE_WINDOWS_H
#define DML_BASE_WINDOWS_H

#include "base/platform.h"

#ifdef _WIN32

#ifdef _WIN64
#define DML__WINDOWS_NAME(name, bytes) #name
#else
#define DML__WINDOWS_NAME(name, bytes) "_" #name "@" #bytes
#endif
/* dml__windows_<name> is the system's function <name>; `bytes` are those of its parameters on 32 bits. */
#define DML__WINDOWS(result, name, bytes, parameters)                                                        \
    DML__EXTERN_C result __stdcall dml__windows_##name parameters __asm__(DML__WINDOWS_NAME(name, bytes))

DML__WINDOWS(unsigned long, GetLastError, 0, (void));
DML__WINDOWS(int, CloseHandle, 4, (void *handle));
#define DML__WINDOWS_ACCESS_DENIED 5 /* of GetLastError */
#define DML__WINDOWS_SHARING_VIOLATION 32
#define DML__WINDOWS_DISK_FULL 112

DML__WINDOWS(int, MoveFileExA, 12, (const char *from, const char *to, unsigned long flags));
#define DML__WINDOWS_REPLACE_EXISTING 1
#define DML__WINDOWS_WRITE_THROUGH 8

DML__WINDOWS(unsigned long, GetCurrentThreadId, 0, (void));
DML__WINDOWS(unsigned long, WaitForSingleObject, 8, (void *handle, unsigned long milliseconds));
DML__WINDOWS(void, AcquireSRWLockExclusive, 4, (void **lock));
DML__WINDOWS(void, ReleaseSRWLockExclusive, 4, (void **lock));
DML__WINDOWS(int, SleepConditionVariableSRW, 16,
             (void **condition, void **lock, unsigned long milliseconds, unsigned long flags));
DML__WINDOWS(void, WakeAllConditionVariable, 4, (void **condition));
#define DML__WINDOWS_FOREVER 0xFFFFFFFFul

DML__WINDOWS(int, QueryPerformanceCounter, 4, (long long *count));
DML__WINDOWS(int, QueryPerformanceFrequency, 4, (long long *per_second));

DML__WINDOWS(void *, GetCurrentProcess, 0, (void));
DML__WINDOWS(int, GetProcessAffinityMask, 12, (void *process, size_t *own, size_t *of_the_system));
DML__WINDOWS(void *, GetCurrentThread, 0, (void));
DML__WINDOWS(size_t, SetThreadAffinityMask, 8, (void *thread, size_t mask));
DML__WINDOWS(unsigned long, GetActiveProcessorCount, 4, (unsigned short group)); /* 0xFFFF: of all groups */

DML__WINDOWS(int, GetConsoleMode, 8, (void *handle, unsigned long *mode));
/* CONSOLE_SCREEN_BUFFER_INFO as its 11 words; columns [5] to [7] are in the window. */
DML__WINDOWS(int, GetConsoleScreenBufferInfo, 8, (void *handle, short info[11]));

#endif

#endif
