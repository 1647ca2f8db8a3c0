"""A denoiser as a pass of pygfx: what a frame draws with noise, as pygfx's stochastic transparency does, is cleaned before it is shown.

SPDX-License-Identifier: Apache-2.0

    renderer.effect_passes = [DenoisePass(tandem.Denoiser(session, "denoise.safetensors"))]

It has to be the first of the passes: passes before it are recorded, and not submitted yet, when it is asked for its own. pygfx
draws no motion, without which frames before would be smeared over what moves, so each frame is cleaned alone, by its colours.

wgpu lets no other API at its memory, so each frame is copied there and back: from its texture to the host's memory, which the
session's CPU reads where it lies and a GPU through PCIe, and from there into a texture of this pass.
"""
import numpy as np
import wgpu
from pygfx.renderers.wgpu import EffectPass

FORMAT, HALF_RGBA_BYTES = wgpu.TextureFormat.rgba16float, 8  # which is filtered everywhere, other than rgba32float


class Copy(EffectPass):
    """Of the size that it was, in linear light."""

    wgsl = """
        @fragment
        fn fs_main(varyings: Varyings) -> @location(0) vec4<f32> {
            return textureLoad(colorTex, vec2i(varyings.position.xy), 0);
        }
        """


class DenoisePass(Copy):
    def __init__(self, denoiser):
        super().__init__()
        self.denoiser, self.size = denoiser, None
        self.out = Copy()

    def _make_textures(self, size):
        """The one that is read, and the one that is written, of this size."""
        usage = wgpu.TextureUsage
        self.taken = self._device.create_texture(size=size, format=FORMAT, usage=usage.RENDER_ATTACHMENT | usage.COPY_SRC)
        self.cleaned = self._device.create_texture(size=size, format=FORMAT, usage=usage.TEXTURE_BINDING | usage.COPY_DST)
        self.size = size

    def render(self, command_encoder, color_tex, depth_tex, target_tex):
        size = color_tex.texture.size
        if size != self.size:
            self._make_textures(size)
        width, height, _ = size
        layout = {"bytes_per_row": HALF_RGBA_BYTES * width, "rows_per_image": height}
        queue = self._device.queue

        # What was drawn, now: the encoder that is given goes to the GPU when all passes are recorded.
        encoder = self._device.create_command_encoder()
        super().render(encoder, color_tex, depth_tex, self.taken.create_view())
        queue.submit([encoder.finish()])
        data = queue.read_texture({"texture": self.taken}, layout, size)
        picture = np.frombuffer(data, np.float16).reshape(height, width, 4)

        self.denoiser.reset()
        cleaned = picture.copy()
        cleaned[..., :3] = self.denoiser(picture[..., :3].astype(np.float32), hard_edges=True)  # as it is rasterised
        queue.write_texture({"texture": self.cleaned}, cleaned, layout, size)
        self.out.render(command_encoder, self.cleaned.create_view(), None, target_tex)
