//! Compiles the C++ shim against libtorch if the feature `libtorch` is enabled.

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    #[cfg(all(feature = "libtorch", not(feature = "doc-only")))]
    build_shim();
}

/// Compiles with CUDA if libtorch and the CUDA headers are available, otherwise with stubs that return an error.
#[cfg(all(feature = "libtorch", not(feature = "doc-only")))]
fn build_shim() {
    use std::path::PathBuf;
    let folder = std::env::var("DEP_TCH_LIBTORCH_LIB")
        .expect("torch-sys should set DEP_TCH_LIBTORCH_LIB to the folder of libtorch");
    let libraries = PathBuf::from(folder);
    let torch = libraries.parent().expect("the folder of libtorch should have a parent folder").to_owned();
    let include = torch.join("include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .warnings(false)
        .flag("-std=c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("cpp/shim.cpp");
    // Packages from PyPI are siblings of torch; an installed toolkit is in its usual place.
    let packages = torch.parent().map(|packages| packages.join("nvidia/cu13/include"));
    let candidates = packages.into_iter().chain(["/usr/local/cuda/include".into()]);
    let headers = candidates
        .filter(|folder| folder.join("cuda.h").exists() && folder.join("crt").exists())
        .find(|folder| folder.join("nvrtc.h").exists());
    match headers {
        Some(headers) if libraries.join("libtorch_cuda.so").exists() => {
            build.include(headers).define("UPWASH_CUDA", None);
            println!("cargo:rustc-link-lib=torch_cuda");
            println!("cargo:rustc-link-lib=c10_cuda");
        }
        _ => println!("cargo:warning=libtorch without CUDA, or no CUDA headers found: building for the CPU only"),
    }
    build.compile("upwash_shim");
    println!("cargo:rustc-link-search=native={}", libraries.display());
    // Lets tests and benchmarks of this crate find libtorch without LD_LIBRARY_PATH.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    println!("cargo:libtorch_lib={}", libraries.display());
}
