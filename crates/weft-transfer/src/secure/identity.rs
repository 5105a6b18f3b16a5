//! The identity of an end: an Ed25519 key pair, stored in a file.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use super::SecureError;

/// Length of the seed and of the public key in bytes.
const KEY_LEN: usize = 32;
/// Length of a signature in bytes.
pub(super) const SIGNATURE_LEN: usize = 64;
/// Prefix of a public key's text.
const PUBLIC: &str = "ed25519:";
/// Prefix of a key file's text.
const SECRET: &str = "ed25519-seed:";
/// The bytes before an Ed25519 key in DER (RFC 8410, section 4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// An Ed25519 public key. It serves as its own fingerprint, with the text `ed25519:` and 64
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// Parses a key in DER, a `SubjectPublicKeyInfo`.
    ///
    /// # Errors
    /// `BadKey` if the bytes are anything else.
    pub fn from_spki(der: &[u8]) -> Result<Self, SecureError> {
        let key = der.strip_prefix(&SPKI_PREFIX).ok_or(SecureError::BadKey)?;
        Ok(Self(key.try_into().map_err(|_| SecureError::BadKey)?))
    }

    /// Returns the key of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Whether a message has the signature of the end with this key.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }

    /// Returns the key in DER.
    #[must_use]
    pub fn spki(&self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.0].concat()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PUBLIC)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = SecureError;
    fn from_str(text: &str) -> Result<Self, SecureError> {
        text.strip_prefix(PUBLIC).and_then(bytes_of).map(Self).ok_or(SecureError::BadKey)
    }
}

/// Decodes 64 hexadecimal digits.
fn bytes_of(text: &str) -> Option<[u8; KEY_LEN]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_LEN {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let mut bytes = [0; KEY_LEN];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The key pair of an end.
pub struct Identity {
    seed: [u8; KEY_LEN],
    public: PublicKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("public", &self.public).finish_non_exhaustive()
    }
}

impl Identity {
    /// Creates a key pair for this process only, without a file.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub fn generate() -> Result<Self, SecureError> {
        let mut seed = [0; KEY_LEN];
        let filled = SystemRandom::new().fill(&mut seed);
        filled.map_err(|_| SecureError::Library("no random bytes"))?;
        Self::of(seed)
    }

    fn of(seed: [u8; KEY_LEN]) -> Result<Self, SecureError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| SecureError::BadKey)?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| SecureError::BadKey)?;
        Ok(Self { seed, public: PublicKey(public) })
    }

    /// Loads the key pair from a file. If there is none, creates it with its folders, readable by
    /// the owner only.
    ///
    /// # Errors
    /// If other users can read the file, if it is no key file, or if a system call fails.
    pub fn load_or_create(path: &Path) -> Result<Self, SecureError> {
        match Self::load(path) {
            Err(SecureError::System(error)) if error.kind() == io::ErrorKind::NotFound => {}
            loaded => return loaded,
        }
        let identity = Self::generate()?;
        match identity.store(path) {
            // Another process has created the file meanwhile, so its key is used.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::load(path),
            stored => Ok(stored.map(|()| identity)?),
        }
    }

    fn load(path: &Path) -> Result<Self, SecureError> {
        let name = || path.display().to_string();
        let mut file = File::open(path)?;
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(SecureError::Exposed(name()));
        }
        let mut text = String::new();
        Read::by_ref(&mut file).take(1 << 10).read_to_string(&mut text)?;
        let seed = text.trim_end().strip_prefix(SECRET).and_then(bytes_of);
        let bad = SecureError::BadFile { file: name(), line: 1, problem: "no Ed25519 seed" };
        Self::of(seed.ok_or(bad)?)
    }

    /// Writes a temporary file and links it to its name, so that the file is never incomplete.
    fn store(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        let written = (|| {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(SECRET.as_bytes())?;
            for byte in self.seed {
                write!(file, "{byte:02x}")?;
            }
            writeln!(file)?;
            file.sync_all()?;
            // Unlike a rename, a link does not replace another process's file.
            fs::hard_link(&draft, path)
        })();
        let _ = fs::remove_file(&draft);
        written
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs a message.
    pub(super) fn sign(&self, message: &[u8]) -> Result<[u8; SIGNATURE_LEN], SecureError> {
        let failed = SecureError::Library("no signature");
        let pair = Ed25519KeyPair::from_seed_unchecked(&self.seed).map_err(|_| SecureError::BadKey);
        pair?.sign(message).as_ref().try_into().map_err(|_| failed)
    }

    /// Returns the pair as PKCS #8.
    pub(super) fn pkcs8(&self) -> Result<Vec<u8>, SecureError> {
        let failed = |_| SecureError::Library("no PKCS #8 form");
        let pair = Ed25519KeyPair::from_seed_unchecked(&self.seed).map_err(|_| SecureError::BadKey);
        Ok(pair?.to_pkcs8v1().map_err(failed)?.as_ref().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn key_file_is_made_once_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weft/transfer-key");
        let first = Identity::load_or_create(&path).expect("a key");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Identity::load_or_create(&path).expect("the same key");
        assert_eq!(first.public(), again.public());
        assert_ne!(first.public(), Identity::generate().expect("a key").public());
        let names = fs::read_dir(folder.path().join("weft")).expect("a folder").count();
        assert_eq!(names, 1, "no draft is left");
    }

    #[test]
    fn key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("transfer-key");
        Identity::load_or_create(&path).expect("a key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("our file");
        let refused = Identity::load_or_create(&path);
        assert!(matches!(refused, Err(SecureError::Exposed(_))), "{refused:?}");
    }

    #[test]
    fn other_file_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("transfer-key");
        fs::write(&path, "notes\n").expect("room");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our file");
        let refused = Identity::load_or_create(&path);
        assert!(matches!(refused, Err(SecureError::BadFile { line: 1, .. })), "{refused:?}");
        assert_eq!(fs::read(&path).expect("a file"), b"notes\n");
    }

    #[test]
    fn public_key_matches_rfc_8032() {
        // The first test vector of section 7.1.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let identity = Identity::of(bytes_of(seed).expect("digits")).expect("a key");
        let public = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(identity.public().to_string(), public);
        assert_eq!(public.parse::<PublicKey>().expect("a key"), identity.public());
    }

    proptest! {
        #[test]
        fn keys_survive_conversion_to_text(key in any::<[u8; KEY_LEN]>()) {
            let key = PublicKey(key);
            prop_assert_eq!(key.to_string().parse::<PublicKey>().expect("a key"), key);
            prop_assert_eq!(PublicKey::from_spki(&key.spki()).expect("a key"), key);
        }

        #[test]
        fn invalid_texts_are_refused_as_keys(
            text in ".{0,100}",
            der in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            prop_assert!(text.parse::<PublicKey>().is_err());
            let is_key = der.len() == 44 && der.starts_with(&SPKI_PREFIX);
            prop_assert_eq!(PublicKey::from_spki(&der).is_ok(), is_key);
        }
    }
}
