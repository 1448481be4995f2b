//! Mutual TLS 1.3 between listed keys: raw public keys (RFC 7250) instead of certificates.

use crate::keys::{Fingerprint, Key};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    version::TLS13,
};
use std::sync::Arc;

/// Verifier that accepts only these keys.
#[derive(Debug)]
struct ListedKeys {
    keys: Vec<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ListedKeys {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        match self.keys.contains(&Fingerprint::of(presented)) {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(presented.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

impl ServerCertVerifier for ListedKeys {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, presented, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for ListedKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        presented: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, presented, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certified_key(key: &Key) -> Arc<CertifiedKey> {
    let public = CertificateDer::from(key.public.clone());
    Arc::new(CertifiedKey::new(vec![public], Arc::clone(&key.signing)))
}

fn verifier(keys: Vec<Fingerprint>, provider: &CryptoProvider) -> Arc<ListedKeys> {
    Arc::new(ListedKeys { keys, algorithms: provider.signature_verification_algorithms })
}

/// Configuration of the accepting side: any of `keys` may connect.
pub(crate) fn server(key: &Key, keys: Vec<Fingerprint>) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let verifier = verifier(keys, &provider);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified_key(key))));
    // Without session resumption every connection proves possession of its key.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Configuration of the connecting side: the other side must have the key `expected`.
pub(crate) fn client(key: &Key, expected: Fingerprint) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = verifier(vec![expected], &provider);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified_key(key))));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustls::{ClientConnection, ServerConnection};

    /// A handshake in memory, between a server with a key that accepts `listed` keys, and a client that expects a key.
    fn handshake(server: &Key, listed: &[&Key], client: &Key, expected: &Key) -> Result<(), Error> {
        let listed = listed.iter().map(|key| key.fingerprint()).collect();
        let mut server = ServerConnection::new(super::server(server, listed)?)?;
        let name = ServerName::try_from("upwash").unwrap();
        let mut client = ClientConnection::new(super::client(client, expected.fingerprint())?, name)?;
        for _ in 0..4 {
            let (mut sent, mut answer) = (vec![], vec![]);
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            if !sent.is_empty() {
                server.read_tls(&mut &sent[..]).unwrap();
            }
            server.process_new_packets()?;
            while server.wants_write() {
                server.write_tls(&mut answer).unwrap();
            }
            if !answer.is_empty() {
                client.read_tls(&mut &answer[..]).unwrap();
            }
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    /// Each end refuses any other key than the expected one, also one that is listed for another worker.
    #[test]
    fn both_ends_verify_the_key_of_the_other() {
        let [first, second, third, stranger] = [(); 4].map(|()| Key::generate());
        let listed = [&first, &second, &third];
        let refused = Err(CertificateError::ApplicationVerificationFailure.into());
        assert_eq!(handshake(&first, &listed, &second, &first), Ok(()));
        assert_eq!(handshake(&third, &listed, &second, &first), refused, "another worker answers");
        assert_eq!(handshake(&stranger, &listed, &second, &first), refused, "a stranger answers");
        assert_eq!(handshake(&first, &listed, &stranger, &first), refused, "a stranger connects");
    }
}
