//! Where the program looks for libtorch, if it is built with it. Which commit it is built from, `upwash-cli` knows.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(folder) = std::env::var("DEP_UPWASH_TORCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    }
}
