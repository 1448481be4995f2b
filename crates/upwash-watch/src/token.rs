//! What those must know who watch from elsewhere.

use ring::rand::{SecureRandom, SystemRandom};

/// A word that nobody can guess, which a URL can hold as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a word is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has 16 to 128 letters, digits, - and _; leave it out, and one is made")]
pub struct TokenError;

impl Token {
    /// One of 128 random bits.
    ///
    /// ```
    /// use upwash_watch::Token;
    /// assert!(Token::generate() != Token::generate());
    /// ```
    ///
    /// # Panics
    ///
    /// If the system has no random numbers.
    pub fn generate() -> Self {
        let mut bytes = [0; 16];
        let made = SystemRandom::new().fill(&mut bytes);
        made.expect("random numbers from the system");
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the token, in a time that does not tell how much of it is.
    pub(crate) fn is(&self, guess: &str) -> bool {
        let (own, guess) = (self.0.as_bytes(), guess.as_bytes());
        let differences = own.iter().zip(guess).fold(0, |sum, (a, b)| sum | (a ^ b));
        own.len() == guess.len() && std::hint::black_box(differences) == 0
    }
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(word: &str) -> Result<Self, TokenError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match (16..=128).contains(&word.len()) && word.bytes().all(fits) {
            true => Ok(Self(word.to_owned())),
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
    fn a_token_is_itself_alone() {
        let token: Token = "0123456789abcdef".parse().unwrap();
        assert!(token.is("0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdee", "0123456789abcdef0"] {
            assert!(!token.is(other), "{other}");
        }
        assert_eq!("short".parse::<Token>(), Err(TokenError));
        assert_eq!("0123456789abcdef&x=".parse::<Token>(), Err(TokenError));
        assert_eq!(format!("{token:?}"), "Token(secret)");
    }
}
