// Batch normalization in training, fused with the ReLU that follows it, if any. Tensors are channels
// last: rows of `channels` values, read sixteen bytes at a time. A reduction over all rows has two stages.
// Every block first sums its own rows. The block that finishes last then adds the blocks' sums in block
// order, so the result does not depend on which block that is.

typedef unsigned short u16;
typedef long long i64;

__device__ inline float from_bf16(u16 x) { return __uint_as_float(((unsigned)x) << 16); }

__device__ inline u16 to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; // round to nearest, ties to even
}

template <typename T> struct Vector;

template <> struct Vector<float> {
  static const int size = 4;
  float at[4];
  __device__ Vector() {}
  __device__ explicit Vector(const float *address) { *(float4 *)at = *(const float4 *)address; }
  __device__ void store(float *address) const { *(float4 *)address = *(const float4 *)at; }
};

template <> struct Vector<u16> {
  static const int size = 8;
  float at[8];
  __device__ Vector() {}
  __device__ explicit Vector(const u16 *address) {
    uint4 raw = *(const uint4 *)address;
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    for (int k = 0; k < 4; k++) {
      at[2 * k] = from_bf16(words[k] & 0xffff);
      at[2 * k + 1] = from_bf16(words[k] >> 16);
    }
  }
  __device__ void store(u16 *address) const {
    unsigned words[4];
    for (int k = 0; k < 4; k++)
      words[k] = to_bf16(at[2 * k]) | ((unsigned)to_bf16(at[2 * k + 1]) << 16);
    *(uint4 *)address = make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// Statistics of a layer, one row each: mean, 1 / standard deviation, and scale and shift of
// y = x scale + shift.
struct Stats {
  const float *mean, *inverse, *scale, *shift;
  __device__ Stats(const float *stats, int channels)
      : mean(stats), inverse(stats + channels), scale(stats + 2 * channels),
        shift(stats + 3 * channels) {}
};

// Sums two values per channel over this block's rows into `partial`. Returns whether this block is the
// last to finish. `pair` adds a row's contribution to the two sums.
template <typename T, typename Pair>
__device__ bool reduce(Pair pair, float2 *partial, int *counter, i64 rows, int channels) {
  const int size = Vector<T>::size;
  __shared__ float2 sums[256 * 8];
  __shared__ bool last;
  int groups = channels / size - 256 * blockIdx.y;
  if (groups > 256)
    groups = 256;
  int rows_at_once = 256 / groups, group = threadIdx.x % groups, row_slot = threadIdx.x / groups;
  int channel = (256 * blockIdx.y + group) * size;
  float2 sum[size];
  for (int k = 0; k < size; k++)
    sum[k] = make_float2(0, 0);
  if (row_slot < rows_at_once)
    for (i64 row = (i64)blockIdx.x * rows_at_once + row_slot; row < rows;
         row += (i64)gridDim.x * rows_at_once)
      pair(row * channels + channel, channel, sum);
  for (int k = 0; k < size; k++)
    sums[threadIdx.x * size + k] = sum[k];
  __syncthreads();
  for (int remaining = rows_at_once; remaining > 1;) {
    int half = (remaining + 1) / 2;
    if (row_slot < remaining - half)
      for (int k = 0; k < size; k++) {
        float2 other = sums[(threadIdx.x + half * groups) * size + k];
        float2 *own = &sums[threadIdx.x * size + k];
        own->x += other.x;
        own->y += other.y;
      }
    remaining = half;
    __syncthreads();
  }
  if (row_slot == 0)
    for (int k = 0; k < size; k++)
      partial[(i64)blockIdx.x * channels + channel + k] = sums[threadIdx.x * size + k];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int blocks = gridDim.x * gridDim.y;
    last = atomicAdd(counter, 1) == blocks - 1;
    if (last)
      *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// The sum of all blocks' sums, in block order.
__device__ inline float2 total(const float2 *partial, int channel, int channels) {
  float2 sum = make_float2(0, 0);
  for (int block = 0; block < gridDim.x; block++) {
    float2 block_sum = __ldcg(&partial[(i64)block * channels + channel]);
    sum.x += block_sum.x;
    sum.y += block_sum.y;
  }
  return sum;
}

// Computes mean and deviation of every channel and updates the running statistics.
template <typename T>
__device__ void collect(const T *x, float2 *partial, int *counter, const float *weight,
                        const float *bias, float *running_mean, float *running_variance,
                        float *stats, i64 rows, int channels, float momentum, float epsilon) {
  // Sums of differences from the first row: where values are large compared to their spread, a sum of
  // squares would lose it to cancellation.
  auto pair = [&](i64 at, int channel, float2 *sum) {
    Vector<T> value(x + at), first(x + channel);
    for (int k = 0; k < Vector<T>::size; k++) {
      float difference = value.at[k] - first.at[k];
      sum[k].x += difference;
      sum[k].y += difference * difference;
    }
  };
  if (!reduce<T>(pair, partial, counter, rows, channels))
    return;
  for (int c = threadIdx.x; c < channels; c += blockDim.x) {
    float2 sum = total(partial, c, channels);
    float mean_difference = sum.x / rows;
    Vector<T> first(x + c / Vector<T>::size * Vector<T>::size);
    float mean = first.at[c % Vector<T>::size] + mean_difference;
    float variance = fmaxf(sum.y / rows - mean_difference * mean_difference, 0.0f);
    float inverse = rsqrtf(variance + epsilon);
    stats[c] = mean;
    stats[channels + c] = inverse;
    float scale = weight[c] * inverse;
    stats[2 * channels + c] = scale;
    stats[3 * channels + c] = bias[c] - mean * scale;
    float unbiased = rows > 1 ? variance * ((float)rows / (rows - 1)) : variance;
    running_mean[c] += momentum * (mean - running_mean[c]);
    running_variance[c] += momentum * (unbiased - running_variance[c]);
  }
}

// y = x scale + shift, followed by the ReLU if `rectify`. NaNs pass through.
template <typename T>
__device__ void apply(const T *x, const float *stats, T *y, i64 count, int channels, int rectify) {
  Stats of(stats, channels);
  i64 stride = (i64)gridDim.x * blockDim.x * Vector<T>::size;
  i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * Vector<T>::size;
  for (; at < count; at += stride) {
    int channel = at % channels;
    Vector<T> value(x + at);
    for (int k = 0; k < Vector<T>::size; k++) {
      float result = value.at[k] * of.scale[channel + k] + of.shift[channel + k];
      value.at[k] = rectify && !(result > 0) && result == result ? 0 : result;
    }
    value.store(y + at);
  }
}

// The gradient at the normalized value: zero where the ReLU was off.
__device__ inline float relu_gradient(float grad_output, float x, float scale, float shift,
                                      int rectify) {
  return rectify && !(x * scale + shift > 0) ? 0 : grad_output;
}

// Gradients of weight and bias.
template <typename T>
__device__ void collect_slopes(const T *grad_output, const T *x, const float *stats,
                               float2 *partial, int *counter, float *grad_weight, float *grad_bias,
                               i64 rows, int channels, int rectify) {
  Stats of(stats, channels);
  auto pair = [&](i64 at, int channel, float2 *sum) {
    Vector<T> value(x + at), gradient(grad_output + at);
    for (int k = 0; k < Vector<T>::size; k++) {
      int c = channel + k;
      float d = relu_gradient(gradient.at[k], value.at[k], of.scale[c], of.shift[c], rectify);
      sum[k].x += d;
      sum[k].y += d * ((value.at[k] - of.mean[c]) * of.inverse[c]);
    }
  };
  if (!reduce<T>(pair, partial, counter, rows, channels))
    return;
  for (int c = threadIdx.x; c < channels; c += blockDim.x) {
    float2 sum = total(partial, c, channels);
    grad_bias[c] = sum.x;
    grad_weight[c] = sum.y;
  }
}

// Gradient of the input, in `result`.
template <typename T>
__device__ void apply_slopes(const T *grad_output, const T *x, const float *stats,
                             const float *grad_weight, const float *grad_bias, T *result,
                             i64 rows, int channels, int rectify) {
  Stats of(stats, channels);
  float inverse_rows = 1.0f / rows;
  i64 count = rows * channels, stride = (i64)gridDim.x * blockDim.x * Vector<T>::size;
  i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * Vector<T>::size;
  for (; at < count; at += stride) {
    int channel = at % channels;
    Vector<T> value(x + at), gradient(grad_output + at);
    for (int k = 0; k < Vector<T>::size; k++) {
      int c = channel + k;
      float d = relu_gradient(gradient.at[k], value.at[k], of.scale[c], of.shift[c], rectify);
      float normalized = (value.at[k] - of.mean[c]) * of.inverse[c];
      gradient.at[k] = of.scale[c] * (d - inverse_rows * grad_bias[c] -
                                      normalized * (inverse_rows * grad_weight[c]));
    }
    gradient.store(result + at);
  }
}

#define KERNELS(name, T)                                                                           \
  extern "C" __global__ void collect_##name(                                                       \
      const T *x, float2 *partial, int *counter, const float *weight, const float *bias,           \
      float *running_mean, float *running_variance, float *stats, i64 rows, int channels,          \
      float momentum, float epsilon) {                                                             \
    collect<T>(x, partial, counter, weight, bias, running_mean, running_variance, stats, rows,     \
               channels, momentum, epsilon);                                                       \
  }                                                                                                \
  extern "C" __global__ void apply_##name(const T *x, const float *stats, T *y, i64 count,         \
                                          int channels, int rectify) {                             \
    apply<T>(x, stats, y, count, channels, rectify);                                               \
  }                                                                                                \
  extern "C" __global__ void collect_slopes_##name(                                                \
      const T *grad_output, const T *x, const float *stats, float2 *partial, int *counter,         \
      float *grad_weight, float *grad_bias, i64 rows, int channels, int rectify) {                 \
    collect_slopes<T>(grad_output, x, stats, partial, counter, grad_weight, grad_bias, rows,       \
                      channels, rectify);                                                          \
  }                                                                                                \
  extern "C" __global__ void apply_slopes_##name(                                                  \
      const T *grad_output, const T *x, const float *stats, const float *grad_weight,              \
      const float *grad_bias, T *result, i64 rows, int channels, int rectify) {                    \
    apply_slopes<T>(grad_output, x, stats, grad_weight, grad_bias, result, rows, channels,         \
                    rectify);                                                                      \
  }

KERNELS(f32, float)
KERNELS(bf16, u16)
