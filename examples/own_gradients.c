/* A program with a model and gradients of its own lets ds be its optimizer: a two-layer network
   learns sin(3x) on [-1, 1], with memory that the program lends. own_gradients STEPS [FOLDER] */
#include <ds.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) \
  if ((call) != DS_OK) return fprintf(stderr, "%s\n", ds_last_error_message()), 1

enum { kWidth = 32, kPoints = 64, kTensors = 4 };

/* y = b2 + sum_j v[j] tanh(w[j] x + b1[j]) */
typedef struct Network {
  float w[kWidth], b1[kWidth], v[kWidth], b2[1];
} Network;

/* Mean squared error over kPoints points, and its gradient. */
static double loss_and_gradient(const Network* net, Network* gradient) {
  double loss = 0;
  memset(gradient, 0, sizeof *gradient);
  for (int i = 0; i < kPoints; ++i) {
    const float x = -1.0f + 2.0f * (float)i / (kPoints - 1);
    float hidden[kWidth], y = net->b2[0];
    for (int j = 0; j < kWidth; ++j) {
      hidden[j] = tanhf(net->w[j] * x + net->b1[j]);
      y += net->v[j] * hidden[j];
    }
    const float error = y - sinf(3.0f * x), dy = 2.0f * error / kPoints;
    loss += (double)error * error / kPoints;
    gradient->b2[0] += dy;
    for (int j = 0; j < kWidth; ++j) {
      const float da = dy * net->v[j] * (1.0f - hidden[j] * hidden[j]);
      gradient->v[j] += dy * hidden[j];
      gradient->w[j] += da * x;
      gradient->b1[j] += da;
    }
  }
  return loss;
}

int main(int argc, char** argv) {
  const char* const names[kTensors] = {"hidden.weight", "hidden.bias", "out.weight", "out.bias"};
  const char* const config =
      "{\"train_micro_batch_size_per_gpu\": 64, \"optimizer\":"
      " {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}}";
  Network net, gradient;
  float* const weights[kTensors] = {net.w, net.b1, net.v, net.b2};
  float* const slopes[kTensors] = {gradient.w, gradient.b1, gradient.v, gradient.b2};
  ds_tensor *values[kTensors], *gradients[kTensors];
  ds_parameter parameters[kTensors] = {{0}};
  ds_step_report report = {.struct_size = sizeof report};
  ds_model* model;
  ds_engine* engine;
  double loss = 0;
  if (argc < 2) return fprintf(stderr, "usage: %s STEPS [FOLDER]\n", argv[0]), 2;

  for (int j = 0; j < kWidth; ++j) { /* a fixed start: any program's own initialisation */
    net.w[j] = 3.0f * sinf(7.0f * (float)j);
    net.b1[j] = cosf(5.0f * (float)j);
    net.v[j] = 0.1f * sinf(3.0f * (float)j);
  }
  net.b2[0] = 0;
  for (int i = 0; i < kTensors; ++i) {
    const int64_t size = i == 3 ? 1 : kWidth;
    TRY(ds_tensor_from_buffer(weights[i], DS_FLOAT32, &size, NULL, 1, NULL, NULL, &values[i]));
    TRY(ds_tensor_from_buffer(slopes[i], DS_FLOAT32, &size, NULL, 1, NULL, NULL, &gradients[i]));
    parameters[i].struct_size = sizeof(ds_parameter);
    parameters[i].name = names[i];
    parameters[i].value = values[i];
    parameters[i].lend = 1; /* new weights arrive in `net` */
  }
  TRY(ds_model_create_from_parameters(parameters, kTensors, &model));
  TRY(ds_engine_create(config, NULL, model, NULL, &engine));
  while (report.step < atoi(argv[1])) {
    loss = loss_and_gradient(&net, &gradient);
    TRY(ds_engine_add_gradients(engine, NULL, gradients, kTensors));
    TRY(ds_engine_step(engine, &report));
    if (report.step % 100 == 0) {
      printf("step %d  loss %.5f  gradient norm %.4f\n", (int)report.step, loss, report.grad_norm);
    }
  }
  if (argc > 2) TRY(ds_engine_save(engine, argv[2], NULL));
  for (int i = 0; i < kTensors; ++i) {
    ds_tensor_destroy(values[i]);
    ds_tensor_destroy(gradients[i]);
  }
  ds_engine_destroy(engine);
  ds_model_destroy(model);
  return 0;
}
