"""Native code that encodes chunks of images (see `stores.tiles` for the format and `tile_reader` for the arguments)."""
# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from fledge.replay.packing.tile_reader import COMMON

wp.set_module_options({"enable_backward": False})

MAX_PLANES = 512  # of a chunk
MAX_CELLS = 2**20  # of a plane
FEW = 16  # changed cells of a tile that are stored as values without weighing it

_ENCODE = (
    """
    const long long* job = (const long long*)jobs + 4 * item;
    const long long rows = job[1];
    u8* const chunk = (u8*)job[2];
    auto encode = [&](auto zero) {
        using T = decltype(zero);
        const int lead = (above + 63) / 64 * 64;  // zeros before a plane: above its first row
        const long long stride = lead + padded;
        T* const reference = (T*)scratch + lead;
        T* const first = reference + stride;
        auto blank = [=](T* x) {
            __builtin_memset(x - lead, 0, lead * sizeof(T));
            __builtin_memset(x + cells, 0, (padded - cells) * sizeof(T));
        };
        // planes: a row that continues the stack of the row before adds one, another row adds `stack`
        const T* from = (const T*)job[0];
        u8* p = chunk + 2;
        const bool four = outer > 1 && stack == 4 && unit == 1 && sizeof(T) == 1;
        int planes = 0;
        for (long long r = 0; r < rows; ++r, from += (long long)cells * stack) {
            bool follows = r > 0 && stack > 1;
            T* const x = first + planes * stride;
            const any32* __restrict__ now = (const any32*)from;
            if (follows && four) {
                const any32* __restrict__ before = now - cells;
                u8* __restrict__ to = (u8*)x;
                u32 differs = 0;
                for (int i = 0; i < cells; ++i) {
                    differs |= (now[i] & 0xFFFFFF) ^ (before[i] >> 8);
                    to[i] = now[i] >> 24;
                }
                follows = differs == 0;
            } else if (follows) {
                const T* const before = from - (long long)cells * stack;
                T differs = 0;
                for (int o = 0; o < outer; ++o) {
                    const T* const a = from + o * stack * unit;
                    const T* const b = before + (o * stack + 1) * unit;
                    for (int u = 0; u < (stack - 1) * unit; ++u) differs |= a[u] ^ b[u];
                    for (int u = 0; u < unit; ++u) x[o * unit + u] = a[(stack - 1) * unit + u];
                }
                follows = differs == 0;
            }
            const int added = follows ? 1 : stack;
            if (!follows && four) {
                u8 *a = (u8*)x, *b = a + stride, *c = b + stride, *d = c + stride;
                for (int i = 0; i < cells; ++i) a[i] = now[i], b[i] = now[i] >> 8, c[i] = now[i] >> 16, d[i] = now[i] >> 24;
            } else if (!follows)
                for (int s = 0; s < stack; ++s)
                    for (int o = 0; o < outer; ++o)
                        for (int u = 0; u < unit; ++u) x[s * stride + o * unit + u] = from[(o * stack + s) * unit + u];
            for (int s = 0; s < added; ++s) blank(x + s * stride);
            planes += added;
            if (stack > 1) *p++ = added;
        }
        T any = 0;
        for (long long i = 0; i < planes * stride - lead; ++i) any |= first[i];
        const bool binary = any <= 1;
        auto same = [=](const T* x, const T* p) -> bool {
            u64 differs = 0;
            const any64 *a = (const any64*)x, *b = (const any64*)p;
            for (u32 i = 0; i < 8 * sizeof(T); ++i) differs |= a[i] ^ b[i];
            return differs == 0;
        };
        auto code_of = [](T x, T p) -> T {  // zig-zag: a small difference of either sign is a small number
            const T gap = x - p;
            return (T)(gap + gap) ^ (T)(gap >> (8 * sizeof(T) - 1) ? ~(T)0 : (T)0);
        };
        auto cost = [=](const T* x, const T* p) -> u32 {  // about the bits that are left, in tiles that differ
            u32 total = 0;
            for (int t = 0; t < tiles; ++t, x += 64, p += 64) {
                if (same(x, p)) continue;
                T code[64];
                for (int i = 0; i < 64; ++i) code[i] = code_of(x[i], p[i]);
                total += 16;
                for (u32 k = 0; k < 4 * sizeof(T); ++k) {
                    u8 count = 0;
                    for (int i = 0; i < 64; ++i) count += code[i] >= (T)1 << (2 * k);
                    total += 2 * count;
                }
            }
            return total;
        };
        auto bits_of = [](const u8* flags) -> u64 {  // 64 bytes of 0 or 1 as bits
            u64 bits = 0;
            for (int g = 0; g < 8; ++g)
                bits |= (*(const any64*)(flags + 8 * g) * 0x0102040810204080ull >> 56) << (8 * g);
            return bits;
        };
        auto width_of = [](const T* code, u8* need) -> u32 {  // that costs least, if cells with wider codes have values
            u8 counts[8 * sizeof(T) + 1] = {};
            for (int i = 0; i < 64; ++i) {
                need[i] = code[i] ? 32 - __builtin_clz((u32)code[i]) : 0;
                ++counts[need[i]];
            }
            u32 wider = 0, best = 0, least = ~0u;
            for (int width = 8 * sizeof(T); width >= 0; wider += counts[width--]) {
                const u32 bytes = 8 * width + (wider ? 2 + wider / 2 + wider * sizeof(T) : 0);
                if (bytes < least) { least = bytes; best = width; }
            }
            return best;
        };
        // the reference: the median of three planes, without most of what moves
        u8 modes[MAX_PLANES] = {};
        bool given = false;
        if (planes > 3) {
            const T* const a = first;
            const T* const b = first + planes / 2 * stride;
            const T* const c = first + (planes - 1) * stride;
            for (int i = 0; i < padded; ++i) {
                const T low = a[i] < b[i] ? a[i] : b[i], high = a[i] < b[i] ? b[i] : a[i];
                const T top = high < c[i] ? high : c[i];
                reference[i] = low < top ? top : low;
            }
            blank(reference);
            u32 intra = cost(reference, reference - above);  // of the last plane measured so
            for (int k = 0; k < planes; ++k) {
                const T* const x = first + k * stride;
                const u32 patch = cost(x, reference);
                modes[k] = patch <= intra || patch <= (intra = cost(x, x - above)) ? REFERENCE : ABOVE;
                given = given || modes[k] == REFERENCE;
            }
        }
        chunk[0] = binary;
        chunk[1] = given;
        any32* ends = (any32*)p;
        p += 4 * (planes + given);
        for (int k = given ? -1 : 0; k < planes; ++k) {
            const T* const x = k < 0 ? reference : first + k * stride;
            const int mode = k < 0 ? (int)ABOVE : modes[k];
            const T* const q = mode == ABOVE ? x - above : reference;
            *p++ = mode;
            u8* const top = p;
            __builtin_memset(top, 0, tops);
            p += tops;
            u8 mark[MAX_MARKS];
            for (int m = 0; m < marks; ++m) {
                u32 low = 0;
                for (int t = 8 * m; t < 8 * m + 8 && t < tiles; ++t) low |= (u32)!same(x + 64 * t, q + 64 * t) << (t & 7);
                mark[m] = low;
                if (low) {
                    top[m / 8] |= 1 << (m & 7);
                    *p++ = low;
                }
            }
            for (int m = 0; m < marks; ++m)
                for (u32 low = mark[m]; low; low &= low - 1) {
                    const int t = 8 * m + __builtin_ctz(low);
                    const T* const now = x + 64 * t;
                    const T* const other = q + 64 * t;
                    u8 flags[64];
                    for (int i = 0; i < 64; ++i) flags[i] = now[i] != other[i];
                    u64 some = bits_of(flags);
                    u32 width = 0;
                    if (!binary && __builtin_popcountll(some) > FEW) {
                        T code[64];
                        for (int i = 0; i < 64; ++i) code[i] = code_of(now[i], other[i]);
                        width = width_of(code, flags);
                        for (int i = 0; i < 64; ++i) flags[i] = flags[i] > width;
                        some = bits_of(flags);
                        *p++ = width | (some ? SOME : 0);
                        u64 held = 0;
                        u32 have = 0;
                        for (int g = 0; g < 8 && sizeof(T) == 1; ++g) {
                            const u64 eight = *(const any64*)(code + 8 * g);
                            for (u32 b = 0; b < width; ++b)
                                *p++ = (eight >> b & 0x0101010101010101ull) * 0x0102040810204080ull >> 56;
                        }
                        for (int i = 0; i < 64 && sizeof(T) > 1 && width; ++i) {
                            held |= (u64)(code[i] & (T)(~0ull >> (64 - width))) << have;
                            have += width;
                            for (; have >= 8; have -= 8, held >>= 8) *p++ = (u8)held;
                        }
                    } else if (!binary) {
                        *p++ = SOME;
                    }
                    if (!some) continue;
                    u8* const groups = p++;
                    *groups = 0;
                    for (int g = 0; g < 8; ++g) {
                        *p = some >> (8 * g) & 255;
                        *groups |= (*p != 0) << g;
                        p += *p != 0;
                    }
                    for (; some && !binary; some &= some - 1, p += sizeof(T)) {
                        const int i = __builtin_ctzll(some);
                        const T value = mode == ABOVE ? (T)(now[i] - other[i]) : now[i];
                        __builtin_memcpy(p, &value, sizeof(T));
                    }
                }
            *ends++ = (u32)(p - chunk);
        }
        ((long long*)jobs)[4 * item + 3] = p - chunk;
    };
    if (word == 1) encode((u8)0);
    else if (word == 2) encode((unsigned short)0);
    else encode((u32)0);
""".replace("MAX_PLANES", str(MAX_PLANES))
    .replace("MAX_MARKS", str(MAX_CELLS // 512))
    .replace("FEW", str(FEW))
)


@wp.func_native(COMMON + _ENCODE)
def encode_chunk(item: wp.int32, table: wp.uint64): ...


@wp.kernel
def encode_chunks(first: wp.int32, table: wp.uint64):
    """Encode chunks of frames.

    `table` is the address of 7 int64: outer, stack, unit, word, above, and the addresses of jobs and scratch. A job is 4
    int64: address of the frames, their number, address to write to, and (output) the bytes written. `scratch` has room for one
    plane more than the chunk can have, each of whole tiles and with `above` words, in whole tiles, before it.
    """
    encode_chunk(first + wp.tid(), table)
