//! Text that the kernel makes, such as files in `/proc`.

use crate::Errno;
use crate::calls::fs::{Mode, OFlags, open};
use crate::calls::read;

/// How many bytes one call asks for at least.
const AT_ONCE: usize = 4_096;

/// Reads a whole file. Unlike `std::fs::read_to_string` it passes no cancellation point of the C
/// library, so that a lock may be held.
///
/// # Errors
/// An error of the kernel; `EILSEQ` if the file is not UTF-8.
pub fn read_text(path: &str) -> Result<String, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut text, mut len) = (Vec::new(), 0);
    loop {
        if text.len() - len < AT_ONCE {
            text.resize((2 * text.len()).max(2 * AT_ONCE), 0);
        }
        match read(&file, &mut text[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    text.truncate(len);
    String::from_utf8(text).map_err(|_| Errno::ILSEQ)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn reads_files_of_any_length() {
        let path = std::env::temp_dir().join(format!("weft-text-{}", std::process::id()));
        let name = path.to_str().expect("UTF-8");
        for len in [0, 1, AT_ONCE, 2 * AT_ONCE, 10 * AT_ONCE + 1] {
            let text = "text ".repeat(len / 5 + 1);
            std::fs::write(&path, &text[..len]).expect("a writable directory");
            assert_eq!(read_text(name).as_deref(), Ok(&text[..len]));
        }
        std::fs::write(&path, [0xff]).expect("a writable directory");
        assert_eq!(read_text(name), Err(Errno::ILSEQ));
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(read_text(name), Err(Errno::NOENT));
        assert!(read_text("/proc/self/maps").is_ok_and(|maps| maps.contains("[stack]")));
    }
}
