// libnvidia-ml.so.1 for machines without a GPU: two GPUs, of which the second is lost. NVML's
// functions, as far as launcher/check calls them; nvml.h has their meanings.
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kGpuIsLost = 15;

struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int code) { return code == kGpuIsLost ? "GPU is lost" : "Error"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<std::size_t>(index + 1));
  return index == 0 ? kSuccess : kGpuIsLost;
}
int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::strncpy(name, "NVIDIA H100 80GB HBM3", size);
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {85'520'809'984, 84'965'785'600, 555'024'384};
  return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(void*, int type, int counter, unsigned long long* count) {
  *count = type == 1 && counter == 0 ? 3 : 0;
  return kSuccess;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failure) {
  *corrected = *uncorrected = *failure = 0;
  *pending = 1;
  return kSuccess;
}
}
