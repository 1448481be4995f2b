//! The secret that authorizes browsers on other machines.

use ring::rand::{SecureRandom, SystemRandom};

/// A secret that cannot be guessed and needs no escaping in a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A text is not a valid token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token must have 16 to 128 letters, digits, - and _; leave it unset to have one generated")]
pub struct TokenError;

impl Token {
    /// Generates a token of 128 random bits.
    ///
    /// ```
    /// use upwash_watch::Token;
    /// assert!(Token::generate() != Token::generate());
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the system provides no random numbers.
    pub fn generate() -> Self {
        let mut bytes = [0; 16];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.expect("random numbers from the system");
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `guess` is the token, compared in constant time.
    pub(crate) fn matches(&self, guess: &str) -> bool {
        let (own, guess) = (self.0.as_bytes(), guess.as_bytes());
        let differences = own.iter().zip(guess).fold(0, |sum, (a, b)| sum | (a ^ b));
        own.len() == guess.len() && std::hint::black_box(differences) == 0
    }
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match (16..=128).contains(&text.len()) && text.bytes().all(is_allowed) {
            true => Ok(Self(text.to_owned())),
            false => Err(TokenError),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token(secret)")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn token_matches_only_itself() {
        let token: Token = "0123456789abcdef".parse().unwrap();
        assert!(token.matches("0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdee", "0123456789abcdef0"] {
            assert!(!token.matches(other), "{other}");
        }
        assert_eq!("short".parse::<Token>(), Err(TokenError));
        assert_eq!("0123456789abcdef&x=".parse::<Token>(), Err(TokenError));
        assert_eq!(format!("{token:?}"), "Token(secret)");
    }
}
