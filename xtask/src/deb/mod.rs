//! `cargo xtask deb`: makes Debian packages of `dist/` in `dist/deb/`.
//!
//! `weft` has the command, the libraries in a directory of their own, the client of tuple spaces,
//! man pages and completions. `weft-dev` has what C programs are compiled and linked with.
//! `weft-dbgsym` has the debug information of the libraries and of the
//! command.

mod copyright;
mod elf;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::{execute, is_for_tests, workspace};
use crate::tools::{copy, create, output, rename, write};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The maintainer in the packages' control files. The address does not exist.
const MAINTAINER: &str = "The Weft authors <weft@localhost.invalid>";

/// A package that is being built.
struct Package {
    name: &'static str,
    section: &'static str,
    /// Fields of its control file, without the fields that all packages have.
    fields: String,
    /// The short description, then the long one.
    description: &'static str,
    root: PathBuf,
}

/// Builds the packages.
///
/// # Errors
/// Errors of the tools and of the file system.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.first() {
        return Err(format!("takes no argument, but got {unknown}"));
    }
    let source = workspace();
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let stage = source.join(target).join("deb");
    let _ = fs::remove_dir_all(&stage); // The build creates it again.
    let root = |name: &str| stage.join(name);

    let main = root("weft");
    let install = format!("DESTDIR={}", main.display());
    execute(
        Command::new("make")
            .current_dir(&source)
            .args(["--silent", "install", "PREFIX=/usr"])
            .arg(install),
    )?;
    let (dev, dbgsym) = (root("weft-dev"), root("weft-dbgsym"));
    create(&dev.join("usr/lib"))?;
    for name in ["usr/include", "usr/lib/libweft_tuples.so", "usr/lib/pkgconfig"] {
        rename(&main.join(name), &dev.join(name))?;
    }
    for file in elf::files(&main)? {
        elf::split(&file, &dbgsym)?;
    }
    compress(&main.join("usr/share/man/man1"))?;
    let depends = elf::depends(&main, &stage)?;
    let same = format!("Depends: weft (= {VERSION})\n");
    let packages = [
        Package {
            name: "weft",
            section: "net",
            fields: format!("Depends: {depends}\nSuggests: perftest, rdmacm-utils\n"),
            description: "RDMA programs on a machine without RDMA hardware\n\
                \x20Weft is a verbs device in user space: programs that use libibverbs and\n\
                \x20librdmacm run on it unmodified, over TCP between hosts and over shared\n\
                \x20memory on one host. Programs that use TCP sockets can exchange their\n\
                \x20bytes through shared memory, too.",
            root: main,
        },
        Package {
            name: "weft-dev",
            section: "libdevel",
            fields: same.clone(),
            description: "headers of Weft's extended sockets and tuple spaces\n\
                \x20One-sided operations beside the stream of a connected TCP socket, and a\n\
                \x20client of tuple spaces, for C.",
            root: dev,
        },
        Package {
            name: "weft-dbgsym",
            section: "debug",
            fields: format!("{same}Auto-Built-Package: debug-symbols\n"),
            description: "debug symbols for weft\n\
                \x20Line tables of the command and of the libraries.",
            root: dbgsym,
        },
    ];
    let texts = copyright::texts(&source)?;
    let out = source.join("dist/deb");
    create(&out)?;
    for package in &packages {
        documents(package, &source, &texts)?;
        build(package, &out)?;
    }
    Ok(())
}

/// Adds the copyright file and the changelog to a package, and the documents to `weft`.
fn documents(package: &Package, source: &Path, texts: &copyright::Texts) -> Result<(), String> {
    let folder = package.root.join("usr/share/doc").join(package.name);
    create(&folder)?;
    write(&folder.join("copyright"), &texts.summary)?;
    copy(&source.join("CHANGELOG.md"), &folder.join("changelog"))?;
    if package.name == "weft" {
        write(&folder.join("licences-of-crates"), &texts.licences)?;
        compress_file(&folder.join("licences-of-crates"))?;
        for document in ["README.md", "SECURITY.md"] {
            copy(&source.join(document), &folder.join(document))?;
        }
    }
    compress_file(&folder.join("changelog"))
}

/// Writes the control files and builds the package.
fn build(package: &Package, out: &Path) -> Result<(), String> {
    let Package { name, section, fields, description, root } = package;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let size = output(Command::new("du").args(["--summarize", "--block-size=1024"]).arg(root))?;
    let size = size.split_whitespace().next().unwrap_or("0");
    let control = format!(
        "Package: {name}\nVersion: {VERSION}\nArchitecture: {architecture}\n\
         Maintainer: {MAINTAINER}\nInstalled-Size: {size}\nSection: {section}\n\
         Priority: optional\n{fields}Description: {description}\n"
    );
    create(&root.join("DEBIAN"))?;
    let sums = "find usr -type f -print0 | sort --zero-terminated | xargs --null md5sum";
    let sums = output(Command::new("sh").current_dir(root).args(["-c", sums]))?;
    write(&root.join("DEBIAN/md5sums"), &sums)?;
    write(&root.join("DEBIAN/control"), &control)?;
    let file = out.join(format!("{name}_{VERSION}_{architecture}.deb"));
    let effort = if is_for_tests() { "-z0" } else { "-z6" };
    let mut command = Command::new("dpkg-deb");
    execute(command.args(["--root-owner-group", "-Zxz", effort, "--build"]).arg(root).arg(&file))
}

/// Compresses each file of a directory.
fn compress(folder: &Path) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten() {
        compress_file(&entry.path())?;
    }
    Ok(())
}

fn compress_file(file: &Path) -> Result<(), String> {
    execute(Command::new("gzip").args(["--best", "--no-name", "--force"]).arg(file))
}
