//! The environment variables by which a program loads Weft's libraries and gets its settings.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path;

use anyhow::{Context as _, Result, bail};

use weft_stream::rules::{self, Rules};

use crate::args::{
    BetweenHosts, DeviceArgs, EnvArgs, Flow, LogLevel, Presentation, SocketArgs, Syntax, ZeroCopy,
};
use crate::layout::Layout;
use crate::output;

/// A variable and the value it gets.
pub(crate) type Variable = (&'static str, OsString);

/// Returns the variables for a program that runs on Weft, based on the current environment.
///
/// # Errors
///
/// If the connection rules of the command line or the environment are invalid.
pub(crate) fn variables(
    layout: &Layout,
    device: &DeviceArgs,
    sockets: &SocketArgs,
) -> Result<Vec<Variable>> {
    let mut variables = Vec::new();
    let mut preload = env::var_os("LD_PRELOAD").unwrap_or_default();
    if !sockets.no_verbs {
        let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        variables.push(("LD_LIBRARY_PATH", prepended(&path, layout.directory.as_os_str())));
        preload = prepended(&preload, layout.preload().as_os_str());
    }
    if !sockets.no_sockets {
        preload = prepended(&preload, layout.sockets().as_os_str());
    }
    variables.push(("LD_PRELOAD", preload));
    variables.extend(device_variables(device));
    variables.extend(socket_variables(sockets)?);
    Ok(variables)
}

fn device_variables(device: &DeviceArgs) -> Vec<Variable> {
    let mut variables = Vec::new();
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

fn socket_variables(sockets: &SocketArgs) -> Result<Vec<Variable>> {
    if sockets.no_sockets {
        // `weft env` may have put the library into LD_PRELOAD already.
        return Ok(vec![("WEFT_SOCKETS", "off".into())]);
    }
    let mut variables = Vec::new();
    if let Some(flow) = sockets.flow {
        variables.push(("WEFT_SOCKETS_FLOW", flow.value().into()));
    }
    if let Some(when) = sockets.zero_copy {
        variables.push(("WEFT_SOCKETS_ZCOPY", when.value().into()));
    }
    if let Some(transport) = sockets.between_hosts {
        variables.push(("WEFT_SOCKETS_BETWEEN_HOSTS", transport.value().into()));
    }
    // Rules are checked here, where the user sees the error: the library could only stay on TCP.
    match &sockets.rules {
        Some(file) => {
            Rules::read(file)?;
            // The program may start its children in another directory.
            let file = path::absolute(file).context("cannot tell the current directory")?;
            variables.push((rules::VARIABLE, file.into()));
        }
        None => drop(Rules::from_environment()?),
    }
    Ok(variables)
}

/// Prints the variables in the syntax of a shell.
///
/// # Errors
///
/// If the libraries are missing, the rules are invalid, or a value cannot be written in the shell's
/// syntax.
pub(crate) fn print(args: &EnvArgs) -> Result<()> {
    let layout = Layout::find()?;
    let mut text = String::new();
    for (name, value) in variables(&layout, &args.device, &args.sockets)? {
        let value = value.to_str().with_context(|| format!("{name} is not UTF-8: {value:?}"))?;
        text.push_str(&assignment(args.shell, name, value)?);
        text.push('\n');
    }
    output::print(&text)
}

/// Returns the path list `list` with `entry` at its front, and nowhere else.
fn prepended(list: &OsStr, entry: &OsStr) -> OsString {
    let mut result = entry.to_owned();
    let list = list.as_encoded_bytes();
    // An empty entry of LD_LIBRARY_PATH means the current directory, so never produce one.
    for old in list.split(|&byte| byte == b':').filter(|old| !old.is_empty()) {
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

impl Flow {
    fn value(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Credit => "credit",
        }
    }
}

impl ZeroCopy {
    fn value(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

impl BetweenHosts {
    fn value(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
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
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn layout() -> Layout {
        Layout { directory: "/opt/weft/lib/weft".into() }
    }

    fn value(variables: &[Variable], name: &str) -> Option<String> {
        let (_, value) = variables.iter().find(|(own, _)| *own == name)?;
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn prepends_once_and_keeps_the_rest() {
        let list = |list: &str| prepended(OsStr::new(list), OsStr::new("/w"));
        assert_eq!(list(""), "/w");
        assert_eq!(list("/a:/b"), "/w:/a:/b");
        assert_eq!(list("/a::/w:/b:"), "/w:/a:/b");
    }

    #[test]
    fn options_become_variables() {
        let device = DeviceArgs {
            device: vec!["eth0".into(), "lo".into()],
            present: Some(Presentation::Iwarp),
            no_crc: true,
            log: Some(LogLevel::Debug),
        };
        let sockets = SocketArgs {
            flow: Some(Flow::Credit),
            zero_copy: Some(ZeroCopy::Sync),
            ..SocketArgs::default()
        };
        let variables = variables(&layout(), &device, &sockets).unwrap();
        for (name, expected) in [
            ("LD_LIBRARY_PATH", "/opt/weft/lib/weft"),
            ("WEFT_DEVICES", "eth0,lo"),
            ("WEFT_PRESENT", "iwarp"),
            ("WEFT_CRC", "0"),
            ("WEFT_LOG", "debug"),
            ("WEFT_SOCKETS_FLOW", "credit"),
            ("WEFT_SOCKETS_ZCOPY", "sync"),
        ] {
            let value = value(&variables, name).unwrap();
            assert!(value.starts_with(expected), "{name}={value}");
        }
        let defaults = (DeviceArgs::default(), SocketArgs::default());
        assert_eq!(super::variables(&layout(), &defaults.0, &defaults.1).unwrap().len(), 2);
    }

    #[test]
    fn each_half_can_be_left_out() {
        let given = |sockets| variables(&layout(), &DeviceArgs::default(), &sockets).unwrap();
        let both = value(&given(SocketArgs::default()), "LD_PRELOAD").unwrap();
        assert!(both.contains("libweft-sockets.so:") && both.contains("libweft-preload.so"));
        let verbs = given(SocketArgs { no_sockets: true, ..SocketArgs::default() });
        assert!(!value(&verbs, "LD_PRELOAD").unwrap().contains("sockets"));
        assert_eq!(value(&verbs, "WEFT_SOCKETS").unwrap(), "off");
        let sockets = given(SocketArgs { no_verbs: true, ..SocketArgs::default() });
        assert!(!value(&sockets, "LD_PRELOAD").unwrap().contains("weft-preload"));
        assert_eq!(value(&sockets, "LD_LIBRARY_PATH"), None);
    }

    #[test]
    fn rules_are_checked_and_named_by_an_absolute_path() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        let name = PathBuf::from(file.path().file_name().unwrap());
        let sockets = SocketArgs { rules: Some(name), ..SocketArgs::default() };
        let given = || variables(&layout(), &DeviceArgs::default(), &sockets);
        let value = value(&given().unwrap(), rules::VARIABLE).unwrap();
        assert!(value.starts_with('/'), "{value}");
        fs::write(file.path(), "use what\n").unwrap();
        let error = given().unwrap_err().to_string();
        assert!(error.contains(":1: "), "{error}");
    }

    #[test]
    fn values_are_quoted() {
        assert_eq!(assignment(Syntax::Sh, "V", "a'b").unwrap(), r"export V='a'\''b'");
        assert_eq!(assignment(Syntax::Fish, "V", r"a'\b").unwrap(), r"set -gx V 'a\'\\b'");
        assert_eq!(assignment(Syntax::Csh, "V", "a!").unwrap(), r"setenv V 'a\!'");
        assert!(assignment(Syntax::Sh, "V", "a\nb").is_err());
    }
}
