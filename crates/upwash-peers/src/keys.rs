//! Identity of a peer: an Ed25519 private key, and the fingerprint by which other peers recognize it.

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// SHA-256 digest of a public key.
///
/// ```
/// use upwash_peers::{Fingerprint, Key};
/// let known = Key::generate().fingerprint();
/// assert_eq!(known.to_string().parse::<Fingerprint>()?, known);
/// # Ok::<(), upwash_peers::KeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Fingerprint of a public key as TLS presents it (SubjectPublicKeyInfo).
    pub fn of(public: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, public);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "sha256:")?;
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{self}")
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let invalid = || KeyError::Fingerprint(text.into());
        let digits = text.strip_prefix("sha256:").ok_or_else(invalid)?;
        if digits.len() != 64 || !digits.is_ascii() {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

/// Why a key or a fingerprint cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not a fingerprint.
    #[error("`{0}` is not a fingerprint: write `sha256:` and 64 hexadecimal digits, as `upwash keys show` prints them")]
    Fingerprint(String),
    /// The key file cannot be read or written.
    #[error("key {}: {source}", path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Users other than the owner can read the key file.
    #[error(
        "key {}: other users can read it (mode {mode:o}): run `chmod 600` on it, or make a new key with \
         `upwash keys new`",
        path.display()
    )]
    Permissions {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file does not contain a key.
    #[error("{} is not a key file: make one with `upwash keys new`", path.display())]
    NotAKey {
        /// The key file.
        path: PathBuf,
    },
}

/// Ed25519 private key of a peer.
#[derive(Clone)]
pub struct Key {
    private: Vec<u8>,
    pub(crate) signing: Arc<dyn SigningKey>,
    pub(crate) public: Vec<u8>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Key({})", self.fingerprint())
    }
}

const LABEL: &str = "PRIVATE KEY";

impl Key {
    /// Generates a new key.
    ///
    /// # Panics
    /// If the system cannot provide random numbers.
    pub fn generate() -> Self {
        let generated = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let generated = generated.expect("the system provides random numbers");
        Self::from_private(generated.as_ref().to_vec()).expect("a generated key is valid")
    }

    fn from_private(private: Vec<u8>) -> Option<Self> {
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(private.clone())).ok()?;
        let public = signing.public_key()?.to_vec();
        Some(Self { private, signing, public })
    }

    /// Fingerprint of the public key.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.public)
    }

    /// Writes the key to a new file that only its owner can read. Never overwrites a file.
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        let failed = |source| KeyError::Io { path: path.to_owned(), source };
        let mut options = std::fs::File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(failed)?;
        let text = pem::encode(&pem::Pem::new(LABEL, self.private.clone()));
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)
    }

    /// Reads a key. Fails if users other than the owner can read the file.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io { path: path.to_owned(), source };
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                let path = path.to_owned();
                return Err(KeyError::Permissions { path, mode });
            }
        }
        let text = std::fs::read(path).map_err(failed)?;
        let parsed = pem::parse(text).ok().filter(|parsed| parsed.tag() == LABEL);
        let key = parsed.and_then(|parsed| Self::from_private(parsed.into_contents()));
        key.ok_or_else(|| KeyError::NotAKey { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn saved_key_loads_and_is_private_to_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = Key::generate();
        key.save(&path).unwrap();
        assert_eq!(Key::load(&path).unwrap().fingerprint(), key.fingerprint());
        assert!(key.save(&path).is_err(), "a key is never overwritten");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |mode| std::fs::Permissions::from_mode(mode);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, mode(0o640)).unwrap();
            let error = Key::load(&path).unwrap_err().to_string();
            assert!(error.contains("other users can read it (mode 640)"), "{error}");
            std::fs::set_permissions(&path, mode(0o600)).unwrap();
        }
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
        assert!(matches!(Key::load(&path), Err(KeyError::NotAKey { .. })));
    }

    #[test]
    fn malformed_fingerprints_are_rejected() {
        let text = Key::generate().fingerprint().to_string();
        for wrong in ["", "sha256:12", &text[7..], &format!("{text}0"), &text.replace("sha", "md")] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
