// Kernels of the GPU engine. Compiled at start for the device at hand.

typedef unsigned char u8;
typedef unsigned short u16;
typedef long long i64;

__device__ inline u16 to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; // to nearest, ties to even
}

__device__ inline float from_bf16(u16 x) { return __uint_as_float(((unsigned)x) << 16); }

// Batches of all workers: cropped, mirrored and scaled images, channels last, and their labels.
// `images` is a byte a pixel, channel by channel; `picks` is (image, down, right, mirrored) for each
// image of each batch. `bf16` says what `out` holds.
extern "C" __global__ void assemble(const u8 *images, const u8 *labels, const int4 *picks,
                                    const float *scaling, void *out, i64 *out_labels, int count,
                                    int channels, int height, int width, int padding, float full,
                                    int bf16) {
  int size = channels * height * width;
  int image = blockIdx.y;
  if (image >= count)
    return;
  int4 pick = picks[image];
  if (blockIdx.x == 0 && threadIdx.x == 0)
    out_labels[image] = labels[pick.x];
  const u8 *source = images + (i64)pick.x * size;
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < size; at += gridDim.x * blockDim.x) {
    int channel = at % channels, place = at / channels;
    int column = place % width, row = place / width;
    if (pick.w)
      column = width - 1 - column;
    int y = row + pick.y - padding, x = column + pick.z - padding;
    float pixel = 0;
    if (y >= 0 && y < height && x >= 0 && x < width)
      pixel = source[(channel * height + y) * width + x];
    float value = (pixel / full - scaling[channel]) / scaling[channels + channel];
    i64 target = (i64)image * size + at;
    if (bf16)
      ((u16 *)out)[target] = to_bf16(value);
    else
      ((float *)out)[target] = value;
  }
}

// Mean cross-entropy of a batch, its slope by the logits (in their own type), and how many were right.
// One block; a warp takes an image at a time. `result` is (loss, right).
extern "C" __global__ void cross_entropy(const void *logits, const i64 *labels, void *slope,
                                         float *result, int images, int classes, int bf16) {
  __shared__ float losses[32], rights[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float loss = 0, right = 0;
  for (int image = warp; image < images; image += warps) {
    i64 base = (i64)image * classes;
    auto logit = [&](int c) {
      return bf16 ? from_bf16(((const u16 *)logits)[base + c]) : ((const float *)logits)[base + c];
    };
    float most = -__int_as_float(0x7f800000);
    int best = classes;
    for (int c = lane; c < classes; c += 32)
      if (logit(c) > most) {
        most = logit(c);
        best = c;
      }
    for (int hop = 16; hop; hop /= 2) {
      float other = __shfl_xor_sync(~0u, most, hop);
      int theirs = __shfl_xor_sync(~0u, best, hop);
      if (other > most || (other == most && theirs < best)) {
        most = other;
        best = theirs;
      }
    }
    float sum = 0;
    for (int c = lane; c < classes; c += 32)
      sum += expf(logit(c) - most);
    for (int hop = 16; hop; hop /= 2)
      sum += __shfl_xor_sync(~0u, sum, hop);
    int label = (int)labels[image];
    for (int c = lane; c < classes; c += 32) {
      float value = (expf(logit(c) - most) / sum - (c == label ? 1.0f : 0.0f)) / images;
      if (bf16)
        ((u16 *)slope)[base + c] = to_bf16(value);
      else
        ((float *)slope)[base + c] = value;
    }
    loss += logf(sum) - (logit(label) - most);
    right += best == label;
  }
  if (lane == 0) {
    losses[warp] = loss;
    rights[warp] = right;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    loss = right = 0;
    for (int w = 0; w < warps; w++) {
      loss += losses[w];
      right += rights[w];
    }
    result[0] = loss / images;
    result[1] = right;
  }
}

// The optimizer and X' = A X - C U in one pass over memory. A block takes 128 columns of all rows:
// everyone's step is taken and its message put into shared memory, then every row is summed up from
// the messages that its plan names. Plans are sparse: `starts` has where each row's entries begin.
// A message is x, or x minus the step where `stepped`. Without gradients (null) rows are only mixed.
extern "C" __global__ void step_and_mix(float4 *models, const float4 *gradients, float4 *velocities,
                                        const int *starts, const int *senders, const float *weights,
                                        const float *own_updates, int rows, i64 width4, float rate,
                                        float momentum, float decay, int nesterov, int stepped) {
  extern __shared__ float4 shared[];
  float4 *messages = shared, *updates = shared + rows * 32;
  int lane = threadIdx.x % 32;
  i64 column = (i64)blockIdx.x * 32 + lane;
  bool inside = column < width4;
  for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    if (!inside)
      continue;
    i64 at = row * width4 + column;
    float4 x = models[at], u = make_float4(0, 0, 0, 0);
    if (gradients) {
      float4 g = gradients[at];
      float4 v = velocities ? velocities[at] : u;
      float *gs = &g.x, *vs = &v.x, *us = &u.x;
      const float *xs = &x.x;
      for (int k = 0; k < 4; k++) {
        float direction = gs[k] + decay * xs[k];
        if (velocities) {
          vs[k] = momentum * vs[k] + direction;
          direction = nesterov ? direction + momentum * vs[k] : vs[k];
        }
        us[k] = rate * direction;
      }
      if (velocities)
        velocities[at] = v;
    }
    updates[row * 32 + lane] = u;
    if (stepped)
      x = make_float4(x.x - u.x, x.y - u.y, x.z - u.z, x.w - u.w);
    messages[row * 32 + lane] = x;
  }
  __syncthreads();
  if (!inside)
    return;
  for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    float own = own_updates[row];
    float4 u = updates[row * 32 + lane], sum = make_float4(0, 0, 0, 0);
    if (own != 0)
      sum = make_float4(own * u.x, own * u.y, own * u.z, own * u.w);
    for (int entry = starts[row]; entry < starts[row + 1]; entry++) {
      float weight = weights[entry];
      float4 y = messages[senders[entry] * 32 + lane];
      sum.x += weight * y.x;
      sum.y += weight * y.y;
      sum.z += weight * y.z;
      sum.w += weight * y.w;
    }
    models[row * width4 + column] = sum;
  }
}
