//! Bytes from the network: whatever they are, a peer refuses them or takes them, and goes on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    upwash_peers::fuzzing::receive(bytes);
    upwash_peers::fuzzing::decode(bytes);
});
