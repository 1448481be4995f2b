// Batch normalisation in training, with the rectifier behind it where there is one. Tensors are channels
// last: rows of `channels` numbers, read sixteen bytes at a time. A reduction over all rows is done in two
// steps, first by every block over its rows, then by whichever block is the last over the blocks' sums in
// their order: the result does not depend on who that is.

typedef unsigned short u16;
typedef long long i64;

__device__ inline float from_bf16(u16 x) { return __uint_as_float(((unsigned)x) << 16); }

__device__ inline u16 to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000)
    return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; // to nearest, ties to even
}

template <typename T> struct Vector;

template <> struct Vector<float> {
  static const int size = 4;
  float at[4];
  __device__ Vector() {}
  __device__ explicit Vector(const float *place) { *(float4 *)at = *(const float4 *)place; }
  __device__ void store(float *place) const { *(float4 *)place = *(const float4 *)at; }
};

template <> struct Vector<u16> {
  static const int size = 8;
  float at[8];
  __device__ Vector() {}
  __device__ explicit Vector(const u16 *place) {
    uint4 raw = *(const uint4 *)place;
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    for (int k = 0; k < 4; k++) {
      at[2 * k] = from_bf16(words[k] & 0xffff);
      at[2 * k + 1] = from_bf16(words[k] >> 16);
    }
  }
  __device__ void store(u16 *place) const {
    unsigned words[4];
    for (int k = 0; k < 4; k++)
      words[k] = to_bf16(at[2 * k]) | ((unsigned)to_bf16(at[2 * k + 1]) << 16);
    *(uint4 *)place = make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// Of a layer: mean, 1 / deviation, and what makes y = x scale + shift of it.
struct Stats {
  const float *mean, *inverse, *scale, *shift;
  __device__ Stats(const float *stats, int channels)
      : mean(stats), inverse(stats + channels), scale(stats + 2 * channels),
        shift(stats + 3 * channels) {}
};

// Sums of a pair of numbers for every channel over all rows, in `partial`; says whether this block is the
// last. `pair` adds a row's share to two sums.
template <typename T, typename Pair>
__device__ bool reduce(Pair pair, float2 *partial, int *counter, i64 rows, int channels) {
  const int size = Vector<T>::size;
  __shared__ float2 sums[256 * 8];
  __shared__ bool last;
  int groups = channels / size - 256 * blockIdx.y;
  if (groups > 256)
    groups = 256;
  int together = 256 / groups, group = threadIdx.x % groups, part = threadIdx.x / groups;
  int channel = (256 * blockIdx.y + group) * size;
  float2 sum[size];
  for (int k = 0; k < size; k++)
    sum[k] = make_float2(0, 0);
  if (part < together)
    for (i64 row = (i64)blockIdx.x * together + part; row < rows; row += (i64)gridDim.x * together)
      pair(row * channels + channel, channel, sum);
  for (int k = 0; k < size; k++)
    sums[threadIdx.x * size + k] = sum[k];
  __syncthreads();
  for (int left = together; left > 1;) {
    int half = (left + 1) / 2;
    if (part < left - half)
      for (int k = 0; k < size; k++) {
        float2 other = sums[(threadIdx.x + half * groups) * size + k];
        float2 *own = &sums[threadIdx.x * size + k];
        own->x += other.x;
        own->y += other.y;
      }
    left = half;
    __syncthreads();
  }
  if (part == 0)
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

__device__ inline float2 total(const float2 *partial, int channel, int channels) {
  float2 sum = make_float2(0, 0);
  for (int block = 0; block < gridDim.x; block++) {
    float2 part = __ldcg(&partial[(i64)block * channels + channel]);
    sum.x += part.x;
    sum.y += part.y;
  }
  return sum;
}

// Mean and deviation of every channel, and the running ones moved.
template <typename T>
__device__ void collect(const T *x, float2 *partial, int *counter, const float *weight,
                        const float *bias, float *running_mean, float *running_variance,
                        float *stats, i64 rows, int channels, float momentum, float epsilon) {
  // Sums of differences to the first row: of numbers that are large beside their differences, the
  // squares would be lost.
  auto pair = [&](i64 at, int channel, float2 *sum) {
    Vector<T> value(x + at), first(x + channel);
    for (int k = 0; k < Vector<T>::size; k++) {
      float apart = value.at[k] - first.at[k];
      sum[k].x += apart;
      sum[k].y += apart * apart;
    }
  };
  if (!reduce<T>(pair, partial, counter, rows, channels))
    return;
  for (int c = threadIdx.x; c < channels; c += blockDim.x) {
    float2 sum = total(partial, c, channels);
    float apart = sum.x / rows;
    Vector<T> first(x + c / Vector<T>::size * Vector<T>::size);
    float mean = first.at[c % Vector<T>::size] + apart;
    float variance = fmaxf(sum.y / rows - apart * apart, 0.0f);
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

// The slope at the normalised value: nothing comes back through a rectifier that was off.
__device__ inline float through(float slope, float x, float scale, float shift, int rectify) {
  return rectify && !(x * scale + shift > 0) ? 0 : slope;
}

template <typename T>
__device__ void collect_slopes(const T *slope, const T *x, const float *stats, float2 *partial,
                               int *counter, float *weight_slope, float *bias_slope, i64 rows,
                               int channels, int rectify) {
  Stats of(stats, channels);
  auto pair = [&](i64 at, int channel, float2 *sum) {
    Vector<T> value(x + at), back(slope + at);
    for (int k = 0; k < Vector<T>::size; k++) {
      int c = channel + k;
      float d = through(back.at[k], value.at[k], of.scale[c], of.shift[c], rectify);
      sum[k].x += d;
      sum[k].y += d * ((value.at[k] - of.mean[c]) * of.inverse[c]);
    }
  };
  if (!reduce<T>(pair, partial, counter, rows, channels))
    return;
  for (int c = threadIdx.x; c < channels; c += blockDim.x) {
    float2 sum = total(partial, c, channels);
    bias_slope[c] = sum.x;
    weight_slope[c] = sum.y;
  }
}

template <typename T>
__device__ void apply_slopes(const T *slope, const T *x, const float *stats,
                             const float *weight_slope, const float *bias_slope, T *result,
                             i64 rows, int channels, int rectify) {
  Stats of(stats, channels);
  float part = 1.0f / rows;
  i64 count = rows * channels, stride = (i64)gridDim.x * blockDim.x * Vector<T>::size;
  i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * Vector<T>::size;
  for (; at < count; at += stride) {
    int channel = at % channels;
    Vector<T> value(x + at), back(slope + at);
    for (int k = 0; k < Vector<T>::size; k++) {
      int c = channel + k;
      float d = through(back.at[k], value.at[k], of.scale[c], of.shift[c], rectify);
      float normal = (value.at[k] - of.mean[c]) * of.inverse[c];
      back.at[k] = of.scale[c] * (d - part * bias_slope[c] - normal * (part * weight_slope[c]));
    }
    back.store(result + at);
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
      const T *slope, const T *x, const float *stats, float2 *partial, int *counter,               \
      float *weight_slope, float *bias_slope, i64 rows, int channels, int rectify) {               \
    collect_slopes<T>(slope, x, stats, partial, counter, weight_slope, bias_slope, rows, channels, \
                      rectify);                                                                    \
  }                                                                                                \
  extern "C" __global__ void apply_slopes_##name(                                                  \
      const T *slope, const T *x, const float *stats, const float *weight_slope,                   \
      const float *bias_slope, T *result, i64 rows, int channels, int rectify) {                   \
    apply_slopes<T>(slope, x, stats, weight_slope, bias_slope, result, rows, channels, rectify);   \
  }

KERNELS(f32, float)
KERNELS(bf16, u16)
