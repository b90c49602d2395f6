// What headers of newer compilers expect of libstdc++ and glibc, and a machine's older ones do not have. Compiled into the
// workers of `cargo xtask dist` alone, which must run with the libstdc++ of GCC 8 and with glibc 2.28.

#include <exception>
#include <new>

// glibc 2.32 has it, so that counting is cheaper in a program without threads. Workers have threads.
extern "C" char __libc_single_threaded;
char __libc_single_threaded = 0;

namespace std {
// GLIBCXX_3.4.29 exports it.
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

namespace __exception_ptr {
// CXXABI_1.3.13 exports both, for what the headers compile in place. An older library has the whole copy and the whole
// destruction, which count by one in the same way.
extern "C" void older_copy(void*, const void*) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
extern "C" void older_destroy(void*) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

void exception_ptr::_M_addref() noexcept {
    void* counted;
    older_copy(&counted, this);
}

void exception_ptr::_M_release() noexcept {
    older_destroy(this);
    _M_exception_object = nullptr;
}
}
}
