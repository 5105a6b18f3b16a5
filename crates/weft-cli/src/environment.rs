//! The variables that put Weft's libraries and settings in front of a program.

use std::env;
use std::ffi::{OsStr, OsString};

use anyhow::{Context as _, Result, bail};

use crate::args::{DeviceArgs, EnvArgs, LogLevel, Presentation, Syntax};
use crate::layout::Layout;
use crate::output;

/// A variable and the value it gets.
pub(crate) type Variable = (&'static str, OsString);

/// The variables to set for a program that is to find Weft's device, given the current ones.
pub(crate) fn variables(layout: &Layout, device: &DeviceArgs) -> Vec<Variable> {
    let mut variables = vec![
        ("LD_LIBRARY_PATH", prepend("LD_LIBRARY_PATH", layout.directory.as_os_str())),
        ("LD_PRELOAD", prepend("LD_PRELOAD", layout.preload().as_os_str())),
    ];
    if !device.device.is_empty() {
        variables.push(("WEFT_DEVICES", device.device.join(",").into()));
    }
    if let Some(presentation) = device.present {
        variables.push(("WEFT_PRESENT", presentation.value().into()));
    }
    if device.no_crc {
        variables.push(("WEFT_CRC", "0".into()));
    }
    if let Some(level) = device.log {
        variables.push(("WEFT_LOG", level.value().into()));
    }
    variables
}

/// Prints the variables in the syntax of a shell.
///
/// # Errors
///
/// If the libraries are missing, or a value cannot be written in the shell's syntax.
pub(crate) fn print(args: &EnvArgs) -> Result<()> {
    let layout = Layout::find()?;
    let mut text = String::new();
    for (name, value) in variables(&layout, &args.device) {
        let value = value.to_str().with_context(|| format!("{name} is not UTF-8: {value:?}"))?;
        text.push_str(&assignment(args.shell, name, value)?);
        text.push('\n');
    }
    output::print(&text)
}

/// The list in variable `name` with `entry` at its front, once.
fn prepend(name: &str, entry: &OsStr) -> OsString {
    prepended(env::var_os(name).as_deref(), entry)
}

fn prepended(list: Option<&OsStr>, entry: &OsStr) -> OsString {
    let mut result = entry.to_owned();
    let rest = list.unwrap_or_default().as_encoded_bytes();
    // An empty entry of LD_LIBRARY_PATH means the current directory: never make one.
    for old in rest.split(|&byte| byte == b':').filter(|old| !old.is_empty()) {
        if old != entry.as_encoded_bytes() {
            result.push(":");
            result.push(os_str(old));
        }
    }
    result
}

fn os_str(bytes: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

fn assignment(syntax: Syntax, name: &str, value: &str) -> Result<String> {
    if value.contains('\n') {
        bail!("{name} contains a line break");
    }
    Ok(match syntax {
        Syntax::Sh => format!("export {name}='{}'", value.replace('\'', r"'\''")),
        Syntax::Fish => {
            format!("set -gx {name} '{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
        }
        // csh expands history even in single quotes.
        Syntax::Csh => {
            format!("setenv {name} '{}'", value.replace('\'', r"'\''").replace('!', r"\!"))
        }
    })
}

impl Presentation {
    fn value(self) -> &'static str {
        match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
        }
    }
}

impl LogLevel {
    fn value(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepends_once_and_keeps_the_rest() {
        let entry = OsStr::new("/w");
        assert_eq!(prepended(None, entry), "/w");
        assert_eq!(prepended(Some(OsStr::new("")), entry), "/w");
        assert_eq!(prepended(Some(OsStr::new("/a:/b")), entry), "/w:/a:/b");
        assert_eq!(prepended(Some(OsStr::new("/a::/w:/b:")), entry), "/w:/a:/b");
    }

    #[test]
    fn options_become_variables() {
        let layout = Layout { directory: "/opt/weft/lib/weft".into() };
        let device = DeviceArgs {
            device: vec!["eth0".into(), "lo".into()],
            present: Some(Presentation::Iwarp),
            no_crc: true,
            log: Some(LogLevel::Debug),
        };
        let variables = variables(&layout, &device);
        for expected in [
            ("WEFT_DEVICES", OsString::from("eth0,lo")),
            ("WEFT_PRESENT", "iwarp".into()),
            ("WEFT_CRC", "0".into()),
            ("WEFT_LOG", "debug".into()),
        ] {
            assert!(variables.contains(&expected), "{expected:?} in {variables:?}");
        }
        assert_eq!(super::variables(&layout, &DeviceArgs::default()).len(), 2);
    }

    #[test]
    fn values_are_quoted() {
        assert_eq!(assignment(Syntax::Sh, "V", "a'b").unwrap(), r"export V='a'\''b'");
        assert_eq!(assignment(Syntax::Fish, "V", r"a'\b").unwrap(), r"set -gx V 'a\'\\b'");
        assert_eq!(assignment(Syntax::Csh, "V", "a!").unwrap(), r"setenv V 'a\!'");
        assert!(assignment(Syntax::Sh, "V", "a\nb").is_err());
    }
}
