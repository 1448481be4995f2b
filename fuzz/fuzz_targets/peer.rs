//! Feeds arbitrary bytes from the network to a peer. It must accept or refuse them and continue, without a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    upwash_peers::fuzzing::receive(bytes);
    upwash_peers::fuzzing::decode(bytes);
});
