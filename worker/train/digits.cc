#include "worker/train/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "worker/data/random.h"
#include "worker/train/digit_strokes.h"

namespace ddp::train {
namespace {

constexpr int kSide = 28;
constexpr int kCurvePieces = 6;  // Lines that approximate a curve between two points.
using Canvas = std::array<double, kSide * kSide>;  // 0 background .. 1 ink.

// A linear map and a shift from the unit square to pixels, around its centre.
struct Affine {
  double xx, xy, yx, yy, dx, dy;

  StrokePoint operator()(StrokePoint p) const {
    const double x = p.x - 0.5;
    const double y = p.y - 0.5;
    return {xx * x + xy * y + dx, yx * x + yy * y + dy};
  }
};

// Rotation by the half-angle parametrisation: cosine and sine without a library function.
Affine random_affine(Random& random) {
  const double half = random.between(-0.16, 0.16);  // tan(angle / 2): up to 18 degrees.
  const double cosine = (1 - half * half) / (1 + half * half);
  const double sine = 2 * half / (1 + half * half);
  const double shear = random.between(-0.3, 0.3);
  const double width = 20.0 * random.between(0.7, 1.15);
  const double height = 20.0 * random.between(0.8, 1.1);
  Affine map{};
  map.xx = cosine * width;
  map.xy = (cosine * shear - sine) * height;
  map.yx = sine * width;
  map.yy = (sine * shear + cosine) * height;
  map.dx = kSide / 2.0 + random.between(-2.5, 2.5);
  map.dy = kSide / 2.0 + random.between(-2.5, 2.5);
  return map;
}

// Ink along the straight line a-b: full within `radius`, fading out over one pixel.
void draw_line(Canvas& canvas, StrokePoint a, StrokePoint b, double radius, double ink) {
  const double reach = radius + 1;
  const int left = std::max(0, static_cast<int>(std::min(a.x, b.x) - reach));
  const int right = std::min(kSide - 1, static_cast<int>(std::max(a.x, b.x) + reach));
  const int top = std::max(0, static_cast<int>(std::min(a.y, b.y) - reach));
  const int bottom = std::min(kSide - 1, static_cast<int>(std::max(a.y, b.y) + reach));
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double length2 = std::max(dx * dx + dy * dy, 1e-9);
  for (int row = top; row <= bottom; ++row) {
    for (int column = left; column <= right; ++column) {
      const double px = column + 0.5 - a.x;
      const double py = row + 0.5 - a.y;
      const double along = std::clamp((px * dx + py * dy) / length2, 0.0, 1.0);
      const double ox = px - along * dx;
      const double oy = py - along * dy;
      const double distance2 = ox * ox + oy * oy;
      if (distance2 >= reach * reach) continue;
      const double cover = std::clamp(radius + 0.5 - std::sqrt(distance2), 0.0, 1.0);
      double& pixel = canvas[static_cast<std::size_t>(row * kSide + column)];
      pixel = std::max(pixel, cover * ink);
    }
  }
}

// Catmull-Rom: the point at `t` of the curve piece between p1 and p2.
StrokePoint curve_point(StrokePoint p0, StrokePoint p1, StrokePoint p2, StrokePoint p3, double t) {
  const auto blend = [t](double a, double b, double c, double d) {
    return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t * t +
                  (3 * b - a - 3 * c + d) * t * t * t);
  };
  return {blend(p0.x, p1.x, p2.x, p3.x), blend(p0.y, p1.y, p2.y, p3.y)};
}

void draw_stroke(Canvas& canvas, std::span<const StrokePoint> points, bool smooth, double radius,
                 double ink) {
  for (std::size_t i = 0; i + 1 < points.size(); ++i) {
    if (!smooth) {
      draw_line(canvas, points[i], points[i + 1], radius, ink);
      continue;
    }
    const StrokePoint before = points[i == 0 ? 0 : i - 1];
    const StrokePoint after = points[std::min(i + 2, points.size() - 1)];
    StrokePoint from = points[i];
    for (int piece = 1; piece <= kCurvePieces; ++piece) {
      const double t = static_cast<double>(piece) / kCurvePieces;
      const StrokePoint to = curve_point(before, points[i], points[i + 1], after, t);
      draw_line(canvas, from, to, radius, ink);
      from = to;
    }
  }
}

// A faint short line anywhere, as a real scan has from the neighbouring digits.
void draw_stray_mark(Canvas& canvas, Random& random) {
  const StrokePoint from{random.between(0, kSide), random.between(0, kSide)};
  const StrokePoint to{from.x + random.between(-6, 6), from.y + random.between(-6, 6)};
  draw_line(canvas, from, to, random.between(0.3, 0.9), random.between(0.2, 0.7));
}

void draw_digit(int digit, Random& random, std::span<std::uint8_t> image) {
  Canvas canvas{};
  const auto shapes = digit_shapes(digit);
  const DigitShape& shape = shapes[random.below(shapes.size())];
  const Affine map = random_affine(random);
  const double radius = random.between(0.6, 1.6);
  const double ink = random.between(0.6, 1.0);
  std::vector<StrokePoint> points;
  for (const Stroke& stroke : shape) {
    points.clear();
    for (StrokePoint point : stroke.points) {
      point.x += random.between(-0.035, 0.035);
      point.y += random.between(-0.035, 0.035);
      points.push_back(map(point));
    }
    draw_stroke(canvas, points, stroke.smooth, radius, ink);
  }
  for (std::uint64_t marks = random.below(3); marks > 0; --marks) draw_stray_mark(canvas, random);
  const double noise = random.between(0.0, 0.2);
  for (std::size_t i = 0; i < canvas.size(); ++i) {
    const double value = canvas[i] + random.between(-noise, noise);
    image[i] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 1.0) * 255.0);
  }
}

ImageSet blank_images(std::size_t count) {
  ImageSet set;
  set.count = count;
  set.rows = kSide;
  set.columns = kSide;
  set.pixels.resize(count * kSide * kSide);
  set.labels.resize(count);
  return set;
}

}  // namespace

ImageSet draw_digits(std::size_t count, std::uint64_t seed, DigitsPart part) {
  const auto stream = static_cast<std::uint64_t>(part);
  ImageSet set = blank_images(count);
  for (std::size_t i = 0; i < count; ++i) set.labels[i] = static_cast<std::uint8_t>(i % 10);
  Random order({seed, 0x6f72646572, stream});
  for (std::size_t i = count; i > 1; --i) std::swap(set.labels[i - 1], set.labels[order.below(i)]);
  for (std::size_t i = 0; i < count; ++i) {
    Random random({seed, 0x6469676974, stream, i});
    draw_digit(set.labels[i], random,
               std::span(set.pixels).subspan(i * set.image_bytes(), set.image_bytes()));
  }
  return set;
}

ImageSet random_images(std::size_t count, std::uint64_t seed, DigitsPart part) {
  ImageSet set = blank_images(count);
  Random random({seed, 0x66616b65, static_cast<std::uint64_t>(part)});
  for (std::size_t i = 0; i < set.pixels.size(); i += 8) {
    // Byte by byte, so that the machine's byte order does not matter.
    std::uint64_t bits = random.next();
    for (std::size_t j = i; j < std::min(i + 8, set.pixels.size()); ++j, bits >>= 8) {
      set.pixels[j] = static_cast<std::uint8_t>(bits & 0xff);
    }
  }
  for (std::uint8_t& label : set.labels) label = static_cast<std::uint8_t>(random.below(10));
  return set;
}

}  // namespace ddp::train
