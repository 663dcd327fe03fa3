//! The three things the standard library has no portable call for.

use std::{fs::File, io, path::Path};

/// Reads exactly `buffer.len()` bytes at `offset`, without moving a shared cursor, so that
/// several threads may read one file.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
    }
    #[cfg(windows)]
    {
        let (mut done, len) = (0, buffer.len());
        while done < len {
            let at = offset + done as u64;
            match std::os::windows::fs::FileExt::seek_read(file, &mut buffer[done..], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }
}

/// Swaps two folders in one step, so that each name holds one of them at every instant.
/// `Unsupported` where the system or the file system (NFS, many FUSE ones) cannot.
pub(crate) fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::{
            fs::{CWD, RenameFlags, renameat_with},
            io::Errno,
        };
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).map_err(|errno| match errno {
            Errno::INVAL | Errno::NOSYS | Errno::NOTSUP => io::ErrorKind::Unsupported.into(),
            other => other.into(),
        })
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    {
        let _ = (a, b);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Bytes free to this user on the file system of `path`, if the system tells.
pub(crate) fn available_bytes(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let stat = rustix::fs::statvfs(path).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}
