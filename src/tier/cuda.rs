//! Page-locked host memory for CUDA, through the CUDA runtime that is looked up only when asked for.

use super::error::TierError;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Names of the runtime, newest first. One that the process has loaded already, as torch does, is found by its name alone.
const LIBRARIES: [&CStr; 4] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0", c"libcudart.so"];
/// `cudaHostRegisterPortable`: for all devices and contexts.
const PORTABLE: c_uint = 1;

type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Unregister = unsafe extern "C" fn(*mut c_void) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// Memory registered with CUDA, until dropped.
pub(super) struct Registered {
    base: *mut u8,
    unregister: Unregister,
    process: u32,
}

// SAFETY: an address and a function that any thread may call.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers memory that stays mapped until this is dropped.
    pub(super) fn new(base: *mut u8, len: usize) -> Result<Registered, TierError> {
        // SAFETY: names are strings; loading a library runs its initialisers, which the caller asked for.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // The library is never closed: CUDA keeps state of the process in it.
        let library = LIBRARIES.into_iter().map(open).find(|library| !library.is_null());
        let library = library.ok_or_else(|| TierError::Cuda("no CUDA runtime (libcudart.so) was found".to_string()))?;
        let symbol = |name: &CStr| {
            // SAFETY: an open library and a string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() {
                let name = name.to_string_lossy();
                return Err(TierError::Cuda(format!("the CUDA runtime has no {name}")));
            }
            Ok(found)
        };
        let (register, unregister) = (symbol(c"cudaHostRegister")?, symbol(c"cudaHostUnregister")?);
        let words = symbol(c"cudaGetErrorString")?;
        // SAFETY: the runtime's functions of these names have these types.
        let (register, unregister, words) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Register>(register),
                std::mem::transmute::<*mut c_void, Unregister>(unregister),
                std::mem::transmute::<*mut c_void, ErrorString>(words),
            )
        };
        // SAFETY: the memory is mapped.
        match unsafe { register(base.cast(), len, PORTABLE) } {
            0 => Ok(Registered { base, unregister, process: std::process::id() }),
            code => {
                // SAFETY: the runtime returns a constant string for every code.
                let words = unsafe { CStr::from_ptr(words(code)) }.to_string_lossy();
                Err(TierError::Cuda(format!("{words} (error {code})")))
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A forked child has no CUDA.
        if self.process == std::process::id() {
            // SAFETY: registered by `new`, and still mapped.
            unsafe { (self.unregister)(self.base.cast()) };
        }
    }
}
