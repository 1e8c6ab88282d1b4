// A decoding step of a pre-norm GPT: a token of each row in (or a few, of a prompt), the logits of the next one out. Compiled at first use by
// compiled_decoding.py, which also says what is supported; all structs are mirrored there.
//
// A step reads every weight once, so that it takes as long as reading the memory, if nothing else gets in the way: the
// threads are started once per step and meet at a barrier between products. Every output is computed by one thread in
// a fixed order, so that results do not depend on the number of threads.
//
// Axes: b batch, t new tokens, n = b·t of them in all, h heads, g key heads, s cached tokens, d head dim, c model dim.

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));

#define CHUNK 32768  // bytes of a matrix that a thread takes at a time; they stay in its cache while all vectors are used
#define GROUP 64     // columns of an int8 matrix that share a scale
#define MAX_COLUMNS 8192  // of a matrix that is multiplied by several vectors at once
#define SPINS 20000  // of a waiting thread, before it gives its core away
#define PHASES 8     // products and attention of a layer
enum { NO_NORM, LAYER_NORM, RMS_NORM };
enum { RELU, GELU, GELU_TANH, SWIGLU };

typedef struct {
    const void *weight;  // (rows, columns), contiguous
    const float *scale;  // (rows, groups of GROUP columns) of an int8 matrix; NULL: the matrix is float32
    const float *bias;   // NULL: none
    int64_t rows, columns;
} Matrix;

typedef struct {
    const float *weight, *bias;
    int64_t kind;
    double eps;
} Norm;

typedef struct {
    Norm attention_norm, q_norm, k_norm, feed_forward_norm;
    Matrix to_q, to_k, to_v, to_out, to_gate, to_hidden, from_hidden;
    float *keys, *values;  // (b, g, capacity, d)
} Layer;

typedef struct {
    int64_t batch, dim, layers, heads, kv_heads, head_dim, mlp_dim, capacity, activation, pairs, interleaved, threads;
    int64_t first;         // index of the first token in the tables of positions
    int64_t count, index;  // t, and the index of the first new token in the cache: set by decode_step
    double scale;
    const float *tokens;     // (vocabulary, c)
    const float *positions;  // (steps, c); NULL: none
    const float *cos, *sin;  // (steps, pairs); NULL: no RoPE
    const Layer *layer;
    Norm norm;
    Matrix head;
    float *x, *q, *k, *v, *attended, *hidden, *gate;  // (n, features)
    float *scratch;                                   // (threads, scratch_size)
    int64_t scratch_size;                             // at least n·c, and capacity + d
    int64_t *taken;                                   // (PHASES·layers + 1): how much of each product is taken
    int64_t *meeting;                                 // threads that wait at the barrier, and barriers so far
} Model;

static inline float sum_lanes(floats x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

static inline floats load_floats(const float *x) { return *(const floats *)x; }

static inline floats load_bytes(const int8_t *x) {
#if defined(__AVX512F__)  // compilers do not find these instructions in the loop below
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)x)));
#elif defined(__AVX2__)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)x)));
#else
    floats y;
    for (int i = 0; i < LANES; i++) y[i] = x[i];
    return y;
#endif
}

static inline float dot(const float *x, const float *y, int64_t n) {
    floats sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) sum[j] += load_floats(x + i + j * LANES) * load_floats(y + i + j * LANES);
    for (; i + LANES <= n; i += LANES) sum[0] += load_floats(x + i) * load_floats(y + i);
    float total = sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i++) total += x[i] * y[i];
    return total;
}

static inline float dot_bytes(const int8_t *w, const float *scale, const float *y, int64_t n) {
    floats sum = {0};
    int64_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        floats part[2] = {{0}, {0}};
        for (int j = 0; j < GROUP / LANES; j++)
            part[j % 2] += load_bytes(w + i + j * LANES) * load_floats(y + i + j * LANES);
        sum += (part[0] + part[1]) * scale[i / GROUP];
    }
    float total = sum_lanes(sum), rest = 0;
    for (int64_t j = i; j < n; j++) rest += w[j] * y[j];
    return i < n ? total + rest * scale[i / GROUP] : total;
}

// The next `unit` of 0 … count - 1 that nobody has taken: a thread that is held up takes fewer. 0: none is left.
static inline int take(int64_t *taken, int64_t count, int64_t unit, int64_t *first, int64_t *last) {
    *first = __atomic_fetch_add(taken, unit, __ATOMIC_RELAXED);
    *last = *first + unit < count ? *first + unit : count;
    return *first < count;
}

// As many rows as make CHUNK bytes.
static inline int64_t chunk_rows(const Matrix *w) {
    int64_t rows = CHUNK / (w->columns * (w->scale ? 1 : 4));
    return rows < 4 ? 4 : rows / 2 * 2;
}

static inline void put(const Matrix *w, float *y, int add, int64_t i, int64_t r, float value) {
    if (w->bias) value += w->bias[r];
    float *target = y + i * w->rows + r;
    *target = add ? *target + value : value;
}

// Two rows times four vectors: a weight that was loaded is used four times, a number of a vector twice.
static inline void dot_block(const float *first, const float *second, const float *x, int64_t n, floats sum[2][4]) {
    for (int64_t c = 0; c + LANES <= n; c += LANES) {
        floats top = load_floats(first + c), bottom = load_floats(second + c);
        for (int j = 0; j < 4; j++) {
            floats vector = load_floats(x + j * n + c);
            sum[0][j] += top * vector;
            sum[1][j] += bottom * vector;
        }
    }
}

// The floats of an int8 row.
static inline void dequantize(const Matrix *w, int64_t r, float *y) {
    int64_t n = w->columns, i = 0;
    const int8_t *row = (const int8_t *)w->weight + r * n;
    const float *scale = w->scale + r * ((n + GROUP - 1) / GROUP);
    for (; i + LANES <= n; i += LANES) *(floats *)(y + i) = load_bytes(row + i) * scale[i / GROUP];
    for (; i < n; i++) y[i] = row[i] * scale[i / GROUP];
}

// y[i, r] = w[r] · x[i] + bias[r] for `count` vectors i and rows r from first to last; added to y where `add` is set.
static void multiply_rows(const Matrix *w, const float *x, float *y, int add, int64_t count, int64_t first, int64_t last) {
    int64_t n = w->columns, groups = (n + GROUP - 1) / GROUP, blocked = first, grouped = count / 4 * 4;
    if (grouped && n <= MAX_COLUMNS) blocked = (last - first) / 2 * 2 + first;
    for (int64_t r = first; r < blocked; r += 2) {
        float floating[2][MAX_COLUMNS];
        const float *rows[2] = {(const float *)w->weight + r * n, (const float *)w->weight + (r + 1) * n};
        for (int k = 0; w->scale && k < 2; k++) {
            dequantize(w, r + k, floating[k]);
            rows[k] = floating[k];
        }
        for (int64_t i = 0; i < grouped; i += 4) {
            floats sum[2][4] = {{{0}, {0}, {0}, {0}}, {{0}, {0}, {0}, {0}}};
            dot_block(rows[0], rows[1], x + i * n, n, sum);
            for (int k = 0; k < 2; k++)
                for (int j = 0; j < 4; j++) {
                    float value = sum_lanes(sum[k][j]);
                    for (int64_t c = n / LANES * LANES; c < n; c++) value += rows[k][c] * x[(i + j) * n + c];
                    put(w, y, add, i + j, r + k, value);
                }
        }
    }
    for (int64_t r = first; r < last; r++)
        for (int64_t i = r < blocked ? grouped : 0; i < count; i++)
            put(w, y, add, i, r,
                w->scale ? dot_bytes((const int8_t *)w->weight + r * n, w->scale + r * groups, x + i * n, n)
                         : dot((const float *)w->weight + r * n, x + i * n, n));
}

static void multiply(const Matrix *w, const float *x, float *y, int add, int64_t count, int64_t *taken) {
    int64_t first, last, unit = chunk_rows(w);
    while (take(taken, w->rows, unit, &first, &last)) multiply_rows(w, x, y, add, count, first, last);
}

static void normalize(const Norm *norm, const float *x, float *y, int64_t n) {
    if (norm->kind == NO_NORM) {
        if (y != x) memcpy(y, x, n * sizeof(float));
        return;
    }
    double mean = 0, square = 0;
    if (norm->kind == LAYER_NORM) {
        for (int64_t i = 0; i < n; i++) mean += x[i];
        mean /= n;
    }
    for (int64_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrt(square / n + norm->eps), shift = mean;
    for (int64_t i = 0; i < n; i++) {
        float value = (x[i] - shift) * factor;
        if (norm->weight) value *= norm->weight[i];
        y[i] = norm->bias ? value + norm->bias[i] : value;
    }
}

static void rotate(const Model *m, float *x, int64_t index) {
    if (!m->cos) return;
    int64_t step = index - m->first;
    const float *cos = m->cos + step * m->pairs, *sin = m->sin + step * m->pairs;
    for (int64_t i = 0; i < m->pairs; i++) {
        float *first = x + (m->interleaved ? 2 * i : i), *second = first + (m->interleaved ? 1 : m->pairs);
        float a = *first, b = *second;
        *first = a * cos[i] - b * sin[i];
        *second = b * cos[i] + a * sin[i];
    }
}

// Put the key and value of new token i and key head g into the cache.
static void store(const Model *m, const Layer *layer, int64_t i, int64_t g) {
    int64_t d = m->head_dim, index = m->index + i % m->count, head = i / m->count * m->kv_heads + g;
    float *key = layer->keys + (head * m->capacity + index) * d, *value = layer->values + (head * m->capacity + index) * d;
    normalize(&layer->k_norm, m->k + (i * m->kv_heads + g) * d, key, d);
    rotate(m, key, index);
    memcpy(value, m->v + (i * m->kv_heads + g) * d, d * sizeof(float));
}

// Attention of new token i in head h to the cached tokens and to the new ones up to itself.
static void attend(const Model *m, const Layer *layer, int64_t i, int64_t h, float *scratch) {
    int64_t d = m->head_dim, index = m->index + i % m->count;
    int64_t head = i / m->count * m->kv_heads + h * m->kv_heads / m->heads;
    const float *keys = layer->keys + head * m->capacity * d, *values = layer->values + head * m->capacity * d;
    float *query = scratch, *weights = query + d, *out = m->attended + (i * m->heads + h) * d;
    normalize(&layer->q_norm, m->q + (i * m->heads + h) * d, query, d);
    rotate(m, query, index);
    float highest = -INFINITY, total = 0;
    for (int64_t s = 0; s <= index; s++) {
        weights[s] = dot(query, keys + s * d, d) * m->scale;
        highest = weights[s] > highest ? weights[s] : highest;
    }
    for (int64_t s = 0; s <= index; s++) total += weights[s] = expf(weights[s] - highest);
    memset(out, 0, d * sizeof(float));
    for (int64_t s = 0; s <= index; s++) {
        float weight = weights[s] / total;
        const float *value = values + s * d;
        for (int64_t j = 0; j < d; j++) out[j] += weight * value[j];
    }
}

static void activate(int64_t kind, float *hidden, const float *gate, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
        float x = hidden[i];
        if (kind == RELU) hidden[i] = x > 0 ? x : 0;
        if (kind == GELU) hidden[i] = 0.5f * x * (1 + erff(x * 0.70710678f));
        if (kind == GELU_TANH) hidden[i] = 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        if (kind == SWIGLU) hidden[i] = x * gate[i] / (1 + expf(-gate[i]));
    }
}

// Wait until all threads are here. A waiting thread gives its core away after a while: another program may need it.
static void barrier(const Model *m, int64_t threads) {
    int64_t round = __atomic_load_n(&m->meeting[1], __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&m->meeting[0], 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&m->meeting[0], 0, __ATOMIC_RELAXED);
        __atomic_store_n(&m->meeting[1], round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t tries = 0; __atomic_load_n(&m->meeting[1], __ATOMIC_ACQUIRE) == round; tries++)
        if (tries > SPINS) sched_yield();
}

static void normalize_rows(const Norm *norm, const float *x, float *y, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; i++) normalize(norm, x + i * n, y + i * n, n);
}

static void run_layer(const Model *m, const Layer *layer, float *scratch, int64_t *taken, int64_t threads) {
    int64_t rows = m->batch * m->count, first, last;
    normalize_rows(&layer->attention_norm, m->x, scratch, rows, m->dim);
    multiply(&layer->to_q, scratch, m->q, 0, rows, taken);
    multiply(&layer->to_k, scratch, m->k, 0, rows, taken + 1);
    multiply(&layer->to_v, scratch, m->v, 0, rows, taken + 2);
    barrier(m, threads);
    while (take(taken + 3, rows * m->kv_heads, 1, &first, &last))
        store(m, layer, first / m->kv_heads, first % m->kv_heads);
    barrier(m, threads);
    while (take(taken + 4, rows * m->heads, 1, &first, &last))
        attend(m, layer, first / m->heads, first % m->heads, scratch);
    barrier(m, threads);
    multiply(&layer->to_out, m->attended, m->x, 1, rows, taken + 5);
    barrier(m, threads);
    normalize_rows(&layer->feed_forward_norm, m->x, scratch, rows, m->dim);
    int64_t unit = chunk_rows(&layer->to_hidden);
    while (take(taken + 6, m->mlp_dim, unit, &first, &last)) {
        multiply_rows(&layer->to_hidden, scratch, m->hidden, 0, rows, first, last);
        if (m->activation == SWIGLU) multiply_rows(&layer->to_gate, scratch, m->gate, 0, rows, first, last);
        for (int64_t i = 0; i < rows; i++)
            activate(m->activation, m->hidden, m->gate, i * m->mlp_dim + first, i * m->mlp_dim + last);
    }
    barrier(m, threads);
    multiply(&layer->from_hidden, m->hidden, m->x, 1, rows, taken + 7);
    barrier(m, threads);
}

static void embed(const Model *m, const int64_t *tokens) {
    for (int64_t i = 0; i < m->batch * m->count; i++) {
        const float *token = m->tokens + tokens[i] * m->dim;
        int64_t step = m->index - m->first + i % m->count;
        for (int64_t j = 0; j < m->dim; j++)
            m->x[i * m->dim + j] = token[j] + (m->positions ? m->positions[step * m->dim + j] : 0);
    }
}

// Read the tokens (b, t) at `index` of the cache; write the logits (b, vocabulary) after the last of each row,
// unless `logits` is NULL.
void decode_step(Model *m, const int64_t *tokens, int64_t count, int64_t index, float *logits) {
    m->count = count, m->index = index;
    memset(m->taken, 0, (PHASES * m->layers + 1) * sizeof(int64_t));
    embed(m, tokens);
#ifdef _OPENMP
#pragma omp parallel num_threads(m->threads)
#endif
    {
        int64_t thread = 0, threads = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), threads = omp_get_num_threads();
#endif
        float *scratch = m->scratch + thread * m->scratch_size;
        for (int64_t i = 0; i < m->layers; i++)
            run_layer(m, m->layer + i, scratch, m->taken + PHASES * i, threads);
        for (int64_t b = 0; logits && b < m->batch; b++)
            normalize(&m->norm, m->x + (b * count + count - 1) * m->dim, scratch + b * m->dim, m->dim);
        if (logits) multiply(&m->head, scratch, logits, 0, m->batch, m->taken + PHASES * m->layers);
    }
}
