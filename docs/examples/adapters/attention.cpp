// Causal attention of one head: q, k, v and out are (t, d), row after row.
#include <cmath>
#include <vector>

extern "C" void attend(const double* q, const double* k, const double* v, double* out, int t, int d) {
    for (int i = 0; i < t; ++i) {
        std::vector<double> weights(i + 1);
        double largest = -INFINITY, total = 0;
        for (int j = 0; j <= i; ++j) {
            double score = 0;
            for (int c = 0; c < d; ++c) score += q[i * d + c] * k[j * d + c];
            weights[j] = score / std::sqrt(double(d));
            largest = std::fmax(largest, weights[j]);
        }
        for (int j = 0; j <= i; ++j) total += weights[j] = std::exp(weights[j] - largest);
        for (int c = 0; c < d; ++c) {
            out[i * d + c] = 0;
            for (int j = 0; j <= i; ++j) out[i * d + c] += weights[j] / total * v[j * d + c];
        }
    }
}
